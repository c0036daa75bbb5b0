"""What is measured, and the runners that measure it."""
