"""Running a plan, independent of the framework: exchanges between processes, batches, checks."""
