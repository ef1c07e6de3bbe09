"""The kinds of work that a rank does."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What an action does; the value is what it prints as.

    A backward is either whole (`BACKWARD`) or in two parts, `INPUT_GRADIENT` and then, at any time
    later, `WEIGHT_GRADIENT`. `RECOMPUTE` repeats a forward that kept only its inputs.
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

    __hash__ = str.__hash__  # Enum's own is a Python call, paid for every action in every dict
