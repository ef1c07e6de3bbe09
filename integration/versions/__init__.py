"""What was tried with which versions of Python, PyTorch, JAX and transformers: docs/versions.md."""
