"""The PyTorch half, which is not written yet."""

raise ImportError(
    "frontends.torch is not there yet: this version plans and runs JAX steps only; "
    "use frontends.jax"
)
