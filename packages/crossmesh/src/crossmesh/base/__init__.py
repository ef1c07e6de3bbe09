"""Tensors, links, boxes of elements, tasks and the compiled core."""
