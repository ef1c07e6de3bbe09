"""The commands of `python -m stagecut`."""
