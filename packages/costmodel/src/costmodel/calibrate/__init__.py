"""Measures a machine: collectives, matrix products and memory, in processes or virtual devices.

`launch` starts the processes, `measure` decides what they time and for how long, `waiting` ends
those that hang, and `mpi`, `torch` and `jax` do the work; each imports its framework at the top,
and nothing here imports one of them before it is to run.
"""
