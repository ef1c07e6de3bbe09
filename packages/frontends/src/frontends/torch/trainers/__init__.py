"""Trainers of other libraries, whose steps run by a plan; a module for each library."""
