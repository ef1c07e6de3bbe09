"""Checksums are those of values: the same in every process, and of every order of a dict."""

import sys
from typing import Any

import numpy as np
from frontends.base.checksums import checksum
from hypothesis import given
from hypothesis import strategies as st
from launching import run

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, "1"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
)


class Thing:
    """What nobody knows how to compare between processes."""


@given(values, values)
def test_checksums_are_equal_for_what_is_equal_and_nothing_else(one: Any, other: Any) -> None:
    assert (checksum(one) == checksum(other)) == (shown(one) == shown(other))


def shown(value: Any) -> str:
    """The text of a value, whatever the order of its dicts."""
    if isinstance(value, dict):
        value = [[key, value[key]] for key in sorted(value)]
    return f"[{','.join(map(shown, value))}]" if isinstance(value, list) else repr(value)


def test_arrays_differ_by_type_shape_and_number() -> None:
    array = np.arange(6, dtype=np.float32)
    others = [
        array.astype(np.int32),
        array.view(np.int32),
        array.reshape(2, 3),
        array + 1,
        array[:5],
        array[::-1],
    ]
    assert len({checksum(a) for a in (array, *others)}) == 7
    assert checksum(np.asfortranarray(array.reshape(2, 3))) == checksum(array.reshape(2, 3))


def test_of_objects_only_the_type_counts_unless_they_are_opened() -> None:
    assert checksum([Thing()]) == checksum([Thing()]) != checksum([object()])
    opened = checksum([Thing()], lambda value: (1, 2) if isinstance(value, Thing) else value)
    assert opened == checksum([(1, 2)])


def test_another_process_has_the_same_checksums() -> None:
    code = (
        "from frontends.base.checksums import checksum; import numpy as np;"
        "print(checksum([{'b', 'a', 'c'}, {'x': 1.5, 'y': (None, True)}, np.arange(3), int, 2j]))"
    )
    said = [
        run([sys.executable, "-c", code], deadline_s=60, env={"PYTHONHASHSEED": seed}).output
        for seed in ("1", "2")
    ]
    values = [{"c", "a", "b"}, {"y": (None, True), "x": 1.5}, np.arange(3), int, 2j]
    assert said == [f"{checksum(values)}\n"] * 2
