"""Training programs as people write them, each judged beside eager PyTorch.

`python -m torch_programs` in the folder of the tests runs all, or those whose names hold one of its
arguments, and prints a table of verdicts.
"""
