"""The plan of a transfer as a value, with its messages, its arrays and its simulated times."""
