"""How JAX represents arguments, loops, gathers and pooling, and everything private in JAX."""
