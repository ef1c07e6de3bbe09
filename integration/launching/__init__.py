"""Starts the processes of tests: all end within a deadline, or the test shows where they hang.

The tests of all packages start processes only by this module: by `run` if the processes end by
themselves, by `started` if the test communicates with them meanwhile.

- `processes`: starts the processes, waits for them, ends them;
- `stacks`: asks each process for the stacks of its threads;
- `burner`: keeps a processor busy at the same time.
"""

from launching.burner import burner
from launching.processes import Ended, Started, StillRunningError, run, started

__all__ = ["Ended", "Started", "StillRunningError", "burner", "run", "started"]
