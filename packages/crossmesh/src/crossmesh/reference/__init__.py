"""The same algorithms in plain Python, against which the compiled core is tested."""
