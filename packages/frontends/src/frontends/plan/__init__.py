"""The data of a plan, and the pipeline schedule that it names."""
