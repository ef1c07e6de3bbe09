"""The models of the command line, and training a byte-level GPT on real text."""
