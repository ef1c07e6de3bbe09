"""Which half of attention a device computes for the rows of the opposite device.

`autoshard.space.permutations` says why; this is what it decides, from a device's own sizes.
"""

from __future__ import annotations

from typing import Literal

Half = Literal["examples", "heads", "heads of one key"]
"""What is halved; in the last case, both halves read the same keys."""


def half_of(n_examples: int, n_heads: int, n_groups: int) -> Half | None:
    """What a device halves; None if it computes its own rows only.

    Args:
        n_examples: The examples that the device has.
        n_heads: The heads of queries that it has.
        n_groups: The heads of keys that it has; each serves as many heads of queries in a row.

    Examples:
        >>> half_of(2, 3, 3), half_of(1, 4, 2), half_of(1, 4, 1), half_of(1, 6, 3)
        ('examples', 'heads', 'heads of one key', None)
    """
    if n_examples > 0 and n_examples % 2 == 0:
        return "examples"
    if n_groups > 0 and n_groups % 2 == 0:
        return "heads"
    return "heads of one key" if n_groups == 1 and n_heads % 2 == 0 else None
