"""Checks the type of every field of a graph first, so that all other checks can rely on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

from autoshard.base.arrays import shown
from autoshard.errors import GraphError
from autoshard.graph.graph_fields import (
    Accesses,
    GraphFields,
    Operator,
    Output,
    Phase,
    Role,
    Value,
    itemsize,
)
from autoshard.graph.rule import Rule


def field_misfits(graph: GraphFields) -> Iterator[str]:
    """Yield a sentence for each field that holds a value of the wrong type or range.

    Whole numbers have to be plain `int`s: numpy's print, hash and serialise differently.
    """
    for name, (of, fields) in _FIELDS.items():
        entries = getattr(graph, name)
        if not isinstance(entries, tuple):
            yield f"a graph's {name} are a tuple of {of.__name__}s; got {shown(entries)}"
            return
        for place, entry in enumerate(entries):
            if not isinstance(entry, of):
                yield f"a graph's {name} are a tuple of {of.__name__}s; got {shown(entry)} in it"
                return
            for field, (fits, rule) in fields.items():
                if not fits(value := getattr(entry, field)):
                    yield (
                        f"the {field} of each of a graph's {name} is {rule}; got "
                        f"{field}={shown(value)} in {name}[{place}]"
                    )
    if not _are_texts(graph.inputs):
        yield f"a graph's inputs are a tuple of names; got {shown(graph.inputs)}"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_int, value))


def _is_sized(dtype: object) -> bool:
    try:
        return isinstance(dtype, str) and itemsize(dtype) > 0
    except GraphError:
        return False


def _are_accesses(accesses: object) -> bool:
    if accesses is None:
        return True
    if not (isinstance(accesses, Accesses) and isinstance(accesses.times, tuple)):
        return False
    return all(
        isinstance(number, int | float) and 0.0 <= number < math.inf
        for number in (*accesses.times, accesses.launches)
    )


_TEXT = (_is_text, "a string")
_NAMES = (_are_texts, "a tuple of names")
_INT = (_is_int, "an int")
_FIELDS: dict[str, tuple[type, dict[str, tuple[Callable[[Any], bool], str]]]] = {
    "phases": (Phase, {"name": _TEXT, "repeats": _INT}),
    "values": (
        Value,
        {
            "name": _TEXT,
            "shape": (_is_shape, "a tuple of ints"),
            "dtype": (_is_sized, "a name with its size in bits, as 'float32' is"),
            "role": (get_args(Role).__contains__, f"one of {get_args(Role)}"),
        },
    ),
    "operators": (
        Operator,
        {
            "name": _TEXT,
            "kind": _TEXT,
            "inputs": _NAMES,
            "outputs": _NAMES,
            "rule": (lambda rule: isinstance(rule, Rule), "a Rule, as rule_of returns it"),
            "flops": (
                lambda flops: isinstance(flops, int | float) and 0.0 <= flops < math.inf,
                "a finite number >= 0",
            ),
            "phase": _INT,
            "accesses": (_are_accesses, "Accesses with finite numbers >= 0, or None"),
        },
    ),
    "outputs": (
        Output,
        {
            "value": _TEXT,
            "alias": (lambda alias: alias is None or isinstance(alias, str), "a name or None"),
            "whole": (lambda whole: isinstance(whole, bool), "True or False"),
        },
    ),
}
"""For each field of a graph: the class of its entries, and what each of their fields may hold."""
