"""From a stage's chunk to calls on shards."""
