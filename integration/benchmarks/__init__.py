"""Figures of the packages' benchmarks: kept as JSON, rendered as docs/benchmarks.md."""
