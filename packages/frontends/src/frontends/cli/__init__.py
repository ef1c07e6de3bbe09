"""The command line, and the models that it plans and trains."""
