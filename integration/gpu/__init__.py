"""Steps of whole models on one accelerator: as `jax.jit` runs them, as we do, and as predicted."""
