"""What all other modules are built on: axes, partial results, and how a dim is cut into shards."""
