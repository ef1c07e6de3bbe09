"""Whether a profiler of torch is on.

Private interface of torch 2.13 in use: the flag that `torch.profiler` sets, which torch's own
optimizers read before they name their work.
"""

from __future__ import annotations

from torch.autograd import profiler


def is_profiling() -> bool:
    """Return whether a profiler records now; naming work for it would cost time without one."""
    return bool(profiler._is_profiler_enabled)
