"""Measures a machine: collectives, matrix products and memory, in processes or virtual devices.

`launch` starts the processes, `measure` decides what they time and for how long, `waiting` ends
those that hang, and `mpi`, `torch` and `jax` do the work. Each of these three imports its framework
at the top, so they are imported only when they are used.
"""
