"""Says of every primitive of JAX how a plan runs it: `python integration/primitives`."""
