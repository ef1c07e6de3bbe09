"""Traces a step into a flat jaxpr without keys and callbacks, and cuts it into microbatches."""
