"""The results of the packages' benchmarks, kept as JSON and rendered as docs/benchmarks.md."""
