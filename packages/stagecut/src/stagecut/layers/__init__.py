"""Groups the operators of a model into layers."""
