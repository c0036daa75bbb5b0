"""Sends the figures of a run to TensorBoard or MLflow (the setting `tracking`)."""
