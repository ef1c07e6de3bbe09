"""From a user's step to a jaxpr with its effects and keys, and to one cut into microbatches."""
