"""How operators may be sharded."""
