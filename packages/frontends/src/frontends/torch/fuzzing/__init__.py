"""Runs training programs eagerly and through `frontends.torch`, and compares the two.

`judge` decides whether the user of a program sees the same both ways. `programs` is a hypothesis
strategy of random programs, which print as source that can be kept as a test.
"""

from frontends.torch.fuzzing.data import Data
from frontends.torch.fuzzing.grammar import Written, programs
from frontends.torch.fuzzing.judging import Eager, HangError, Ours, Verdict, judge

__all__ = ["Data", "Eager", "HangError", "Ours", "Verdict", "Written", "judge", "programs"]
