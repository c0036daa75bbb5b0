"""Figures of a run in TensorBoard or MLflow, beside its result directory (`tracking`)."""
