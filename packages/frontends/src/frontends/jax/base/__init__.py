"""Arguments, loops, masks and pools of JAX, and all that is private there."""
