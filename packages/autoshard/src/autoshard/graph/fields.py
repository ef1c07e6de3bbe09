"""What the fields of a graph may hold: checked first, so that all other checks can rely on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

from autoshard.base.arrays import shown
from autoshard.errors import GraphError
from autoshard.graph.graph_fields import GraphFields, Operator, Output, Phase, Role, Value, itemsize
from autoshard.graph.rule import Rule


def field_misfits(graph: GraphFields) -> Iterator[str]:
    """Each field that holds what means nothing there, as a sentence.

    Whole numbers are `int`s: numpy's print, hash and are written in another way.
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
                if not fits(held := getattr(entry, field)):
                    yield (
                        f"the {field} of each of a graph's {name} is {rule}; got "
                        f"{field}={shown(held)} in {name}[{place}]"
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


_TEXT = (_is_text, "a text")
_NAMES = (_are_texts, "a tuple of names")
_INT = (_is_int, "an int")
_FIELDS: dict[str, tuple[type, dict[str, tuple[Callable[[Any], bool], str]]]] = {
    "phases": (Phase, {"name": _TEXT, "repeats": _INT}),
    "values": (
        Value,
        {
            "name": _TEXT,
            "shape": (_is_shape, "a tuple of ints"),
            "dtype": (_is_sized, "a name that tells its size in bits, as 'float32' does"),
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
            "rule": (lambda rule: isinstance(rule, Rule), "a Rule, as rule_of finds it"),
            "flops": (
                lambda flops: isinstance(flops, int | float) and 0.0 <= flops < math.inf,
                "a finite number >= 0",
            ),
            "phase": _INT,
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
"""Per part of a graph the class of its entries, and what each of their fields may hold."""
