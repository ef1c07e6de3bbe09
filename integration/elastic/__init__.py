"""Runs that lose a host: two elastic agents of torchrun, one of which is killed at random.

- `program`: what the agents run: a step that goes on from its last checkpoint;
- `agents`: starts the agents, kills one with its processes, and reads the losses.
"""
