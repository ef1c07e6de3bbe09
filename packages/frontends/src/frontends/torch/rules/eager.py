"""How `frontends.torch` runs operators: one after another, each by the kernel that torch has."""

from __future__ import annotations

from frontends.step.kernels import KernelMaker
from frontends.step.step import IDENTITY

EAGER = KernelMaker(
    "torch",
    views=frozenset(
        (
            *("expand", "permute", "reshape", "select", "slice", "split", "split_with_sizes"),
            *("t", "transpose", "unbind", "view_as_complex", "view_as_real", IDENTITY),
        )
    ),
)
"""PyTorch without a compiler: every operator but a view is a kernel of its own."""
