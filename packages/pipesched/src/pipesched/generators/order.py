"""Helpers of the generators: short names for actions, and functions that order them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from pipesched.base.action import Action
from pipesched.base.checks import is_count
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError

Step = tuple[Kind, int]
"""A kind of work and the stage that does it, on the stage's next microbatch."""


def forward(stage: int, microbatch: int) -> Action:
    """F, the forward."""
    return Action(Kind.FORWARD, stage, microbatch)


def backward(stage: int, microbatch: int) -> Action:
    """B, the whole backward."""
    return Action(Kind.BACKWARD, stage, microbatch)


def input_gradient(stage: int, microbatch: int) -> Action:
    """I, the part of a backward that the previous stage waits for."""
    return Action(Kind.INPUT_GRADIENT, stage, microbatch)


def weight_gradient(stage: int, microbatch: int) -> Action:
    """W, the part of a backward that no stage waits for."""
    return Action(Kind.WEIGHT_GRADIENT, stage, microbatch)


def in_turn(
    forwards: Sequence[Action], backwards: Iterable[Action], warm_up: int
) -> tuple[Action, ...]:
    """`warm_up` forwards, then a backward and a forward in turn, then the remaining backwards."""
    order = list(forwards[:warm_up])
    for pair in zip_longest(backwards, forwards[warm_up:]):
        order += [action for action in pair if action is not None]
    return tuple(order)


def numbered(
    steps: Iterable[Step],
    n_microbatches: int,
    first: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Action, ...]:
    """The actions of a rank: each step with the next microbatch of its stage.

    The forwards of a stage take the microbatches in order, and so do its backwards, where whole
    ones and input gradients are counted together. Its weight gradients take the microbatches of its
    input gradients, in their order. A step for which no microbatch is left is dropped.

    Args:
        steps: The steps of a rank, in order.
        n_microbatches: Number of microbatches.
        first: The microbatch with which a stage starts, if it is not 0.
    """
    next_of: dict[tuple[bool, int], int] = {}
    split: defaultdict[int, deque[int]] = defaultdict(deque)
    order = []
    for kind, stage in steps:
        if kind is Kind.WEIGHT_GRADIENT:
            if split[stage]:
                order.append(weight_gradient(stage, split[stage].popleft()))
            continue
        counter = kind is Kind.FORWARD, stage
        microbatch = next_of.get(counter, first.get(stage, 0))
        if microbatch == n_microbatches:
            continue
        next_of[counter] = microbatch + 1
        order.append(Action(kind, stage, microbatch))
        if kind is Kind.INPUT_GRADIENT:
            split[stage].append(microbatch)
    return tuple(order)


def ranks_for(name: str, n_stages: int, n_chunks: int) -> int:
    """The number of ranks if each has `n_chunks` stages.

    Raises:
        ArgumentError: `n_stages` is not a multiple of `n_chunks`.
    """
    if not is_count(n_chunks) or n_stages % n_chunks:
        raise ArgumentError(
            f"{name} has n_chunks stages on every rank, so n_stages is a multiple of n_chunks; "
            f"got n_stages={n_stages} and n_chunks={n_chunks!r}"
        )
    return n_stages // n_chunks
