"""How primitives may be sharded."""
