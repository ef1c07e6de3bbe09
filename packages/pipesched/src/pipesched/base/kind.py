"""The kinds of work that a rank does."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kind of work of an action; its value is how it prints.

    A backward is either whole (`BACKWARD`) or split in two parts, `INPUT_GRADIENT` and, at any
    later time, `WEIGHT_GRADIENT`. `RECOMPUTE` repeats a forward that kept only its inputs.
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    RECOMPUTE = "R"
    SEND = "SEND"
    RECEIVE = "RECV"
    REDUCE = "G"
    UPDATE = "U"

    __hash__ = str.__hash__  # Enum.__hash__ is written in Python, and slow for dicts of actions
