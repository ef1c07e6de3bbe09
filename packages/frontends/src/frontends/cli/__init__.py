"""The command line, and the examples that it trains."""
