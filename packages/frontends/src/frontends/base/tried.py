"""Says if a library is of another version than those with which the tests were run."""

from __future__ import annotations

import re
import warnings

TRIED = {"torch": ("2.13", "2.14"), "jax": ("0.10", "0.11")}
"""By library, the first and the last minor version that was tried (docs/versions.md, gpu.md)."""


def tell_untried(name: str, version: str) -> None:
    """Warn if a version of a library was not tried.

    We use private interfaces of these libraries, which may change with any version.

    Args:
        name: The library.
        version: Its version, such as `2.13.0+cpu`.
    """
    first, last = TRIED[name]
    minor = re.match(r"\d+\.\d+", version)
    if minor is None or not _order(first) <= _order(minor[0]) <= _order(last):
        tried = first if first == last else f"{first} to {last}"
        warnings.warn(
            f"frontends was tried with {name} {tried}, not with {version}: what a newer {name} has "
            "changed may be missing, so check steps with step.verify, or install one of these",
            stacklevel=3,
        )


def _order(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))
