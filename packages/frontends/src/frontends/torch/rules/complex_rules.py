"""Rules of operators on complex numbers: conversion from and to real pairs, Fourier transforms.

All are linear in the real and imaginary parts, so partial sums pass through them.
"""

from __future__ import annotations

import math

import autoshard
from autoshard import Rule, elementwise, labelled

from frontends.torch.base.described import Described, letters


def pair(d: Described) -> Rule:
    """Return the rule to view complex numbers as pairs or back; the dim of size 2 stays whole."""
    rank = min(len(d.operands[0]), len(d.results[0]))
    every = letters(rank, "z")
    formula = f"{every}->{every}z" if len(d.results[0]) > rank else f"{every}z->{every}"
    return labelled(formula, d.operands, d.results, whole="z", linear=((0,),))


def joined(d: Described) -> Rule:
    """Return the rule to combine a real and an imaginary part."""
    return elementwise(d.operands, d.results[0], ((0, 1),))


def transform(d: Described) -> Rule:
    """Return the rule of a Fourier transform; transformed dims stay whole.

    The last of them is half as long in the transform of a real signal.
    """
    return autoshard.rule_of("fft", d.operands, d.results, dims=d.dims())


def transform_flops(d: Described) -> float:
    """Return 5 n log2(n) for n complex numbers (Cooley and Tukey), half of that for real ones."""
    lengths = [max(d.operands[0][k], d.results[0][k]) for k in d.dims()]
    sizes = [max(pair) for pair in zip(d.operands[0], d.results[0], strict=True)]
    share = 1.0 if d.call.name == "_fft_c2c" else 0.5
    return share * 5.0 * math.prod(sizes) * sum(math.log2(max(n, 2)) for n in lengths)
