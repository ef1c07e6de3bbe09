"""Read the collectives of a compiled XLA program from its text.

XLA merges neighbouring collectives of the same kind into one operation with several operands. Each
operand counts as one collective here, so the count is that of the program that was lowered.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

from frontends.errors import VerificationError
from frontends.run.verify import in_order

Groups = tuple[tuple[int, ...], ...]
Key = tuple[str, Groups, int]
"""Kind, groups of device positions, and bytes of one device's result."""

_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "broadcast",
}
_OPERATION = re.compile(
    rf"= (?P<result>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\(.*?"
    r"(?:source_target_pairs=(?P<pairs>\{(?:\{[\d,]*\},?)*\})|"
    r"replica_groups=(?P<groups>\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|\S+))"
)
_TYPE = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")


def collectives_of(text: str) -> Counter[Key]:
    """How often a program contains each collective.

    Args:
        text: The compiled program, as `compiled.as_text()` gives it.

    Raises:
        VerificationError: A collective is written in an unknown form.
    """
    counts: Counter[Key] = Counter()
    for line in text.splitlines():
        if not any(f" {kind}(" in line or f" {kind}-start(" in line for kind in _KINDS):
            continue
        match = _OPERATION.search(line)
        if match is None:
            raise VerificationError(f"this collective cannot be read: {line.strip()[:200]}")
        kind = _KINDS[match["kind"]]
        pairs = match["pairs"]
        groups = parse_groups(match["groups"]) if pairs is None else parse_pairs(pairs)
        sizes = [_n_bytes(*item) for item in _TYPE.findall(match["result"])]
        if kind == "all_gather" and match["start"]:  # it returns its operands, then its results
            sizes = sizes[len(sizes) // 2 :]
        if kind == "collective_permute" and match["start"]:  # operand, result, and two contexts
            sizes = sizes[1:2]
        if kind == "all_to_all":  # it has an operand for each device, which is that device's part
            sizes = [sum(sizes)]
        counts.update((kind, in_order(groups), size) for size in sizes)
    return counts


def _n_bytes(letters: str, bits: str, dims: str) -> int:
    n_bits = 8 if letters == "pred" else int(bits)
    return math.prod(int(n) for n in dims.split(",") if n) * max(1, n_bits // 8)


def parse_groups(text: str) -> Groups:
    """Replica groups in either of XLA's spellings: listed, or as a transposed iota.

    Examples:
        >>> parse_groups("{{0,1},{2,3}}")
        ((0, 1), (2, 3))
        >>> parse_groups("[2,2]<=[2,2]T(1,0)")
        ((0, 2), (1, 3))
    """
    if text.startswith("{"):
        listed = re.findall(r"\{([\d,]+)\}", text)
        return tuple(tuple(int(n) for n in group.split(",")) for group in listed)
    match = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?,?", text)
    if match is None:
        raise VerificationError(f"replica groups cannot be read: {text[:100]}")
    shape, dims = _numbers(match[1]), _numbers(match[2])
    iota = np.arange(math.prod(dims)).reshape(dims)
    if match[3]:
        iota = iota.transpose(_numbers(match[3]))
    return tuple(tuple(int(n) for n in group) for group in iota.reshape(shape))


def parse_pairs(text: str) -> Groups:
    """The groups within which devices send to each other, of XLA's pairs of senders and receivers.

    Examples:
        >>> parse_pairs("{{0,2},{2,0},{1,3},{3,1},{4,4}}")
        ((0, 2), (1, 3), (4,))
    """
    pairs = re.findall(r"\{(\d+),(\d+)\}", text)
    following = {int(sender): int(receiver) for sender, receiver in pairs}
    groups: list[tuple[int, ...]] = []
    while following:
        device, receiver = following.popitem()
        group = [device]
        while receiver in following:
            group.append(receiver)
            receiver = following.pop(receiver)
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))
