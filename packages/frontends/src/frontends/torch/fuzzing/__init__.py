"""Training programs, each run eagerly and through `frontends.torch`, and compared.

`judge` says of any program whether what its user sees is the same both ways; `programs` is a
hypothesis strategy of random ones, which print as source to be kept as a test.
"""

from frontends.torch.fuzzing.data import Data
from frontends.torch.fuzzing.grammar import Written, programs
from frontends.torch.fuzzing.judging import Eager, HangError, Ours, Verdict, judge

__all__ = ["Data", "Eager", "HangError", "Ours", "Verdict", "Written", "judge", "programs"]
