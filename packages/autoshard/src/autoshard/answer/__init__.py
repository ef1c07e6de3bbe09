"""The answer, a `Sharding`: its costs and memory, and how to explain, compare and verify it."""
