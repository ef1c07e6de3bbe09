"""Processes that a test starts: all end within a deadline, or the test shows where they stand.

Every test that starts processes starts them here, of whichever package it is: `run` for those that
end by themselves, `started` for those that a test talks to meanwhile.

- `processes`: starts them, waits, ends them;
- `stacks`: asks each of them for the stacks of its threads;
- `burner`: keeps a processor busy beside them.
"""

from launching.burner import burner
from launching.processes import Ended, Started, StillRunningError, run, started

__all__ = ["Ended", "Started", "StillRunningError", "burner", "run", "started"]
