"""A plan of a transfer as a value: its messages, arrays and simulated times."""
