"""The command line, `python -m shardspec`."""
