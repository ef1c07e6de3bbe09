"""Objects that the collector tracks are listed, whether they are frozen or not."""

import gc
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from frontends.base.no_gc import Selection, TrackedObjects


class Thing:
    """An object that is looked for, but not if it is small."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[int] = []  # so that the collector tracks it


class _Other(Thing):
    """An object of a type that is left out."""


def _large(things: Iterable[Thing]) -> Iterable[Thing]:
    return (thing for thing in things if thing.size > 1)


def _selection(kind: type) -> Selection | None:
    if kind is Thing:
        return _large
    return iter if kind is type(iter([])) else None


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Hide as much after the test as before it."""
    was_frozen = gc.get_freeze_count() > 0
    yield
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


def _sizes(objects: TrackedObjects) -> list[int]:
    return sorted({thing.size for thing in objects.by_type().get(Thing, ())})


def test_objects_are_found_before_and_after_they_are_frozen() -> None:
    gc.unfreeze()
    objects = TrackedObjects(_selection)
    kept = [Thing(1), Thing(2), _Other(3)]
    assert _sizes(objects) == [2]
    gc.freeze()
    kept.append(Thing(4))
    assert _sizes(objects) == [2, 4]
    assert gc.get_freeze_count() > 0
    kept.append(Thing(5))
    assert _sizes(objects) == [2, 4, 5]


def test_frozen_objects_are_not_kept_alive() -> None:
    objects = TrackedObjects(_selection)
    kept = [Thing(2), Thing(3)]
    gc.freeze()
    assert _sizes(objects) == [2, 3]
    del kept[0]
    assert _sizes(objects) == [3]


def test_objects_that_are_frozen_later_are_found() -> None:
    objects = TrackedObjects(_selection)
    kept = [Thing(2)]
    gc.freeze()
    assert _sizes(objects) == [2]
    kept.append(Thing(3))
    gc.freeze()
    assert _sizes(objects) == [2, 3]
    gc.unfreeze()
    assert _sizes(objects) == [2, 3]
    gc.freeze()
    kept.append(Thing(4))
    assert _sizes(objects) == [2, 3, 4]


def test_what_is_frozen_is_not_listed_again() -> None:
    objects = TrackedObjects(_selection)
    kept = [Thing(2)]
    gc.freeze()
    objects.by_type()
    frozen = gc.get_freeze_count()
    kept.append(Thing(3))
    assert _sizes(objects) == [2, 3]
    assert gc.get_freeze_count() <= frozen


def test_objects_without_weak_references_are_found_too() -> None:
    objects = TrackedObjects(_selection)
    numbers = iter([1, 2])
    gc.freeze()
    found = objects.by_type()[type(numbers)]
    assert any(one is numbers for one in found)


@pytest.mark.parametrize("are_frozen", [False, True])
def test_threads_that_make_objects_meanwhile_are_left_alone(are_frozen: bool) -> None:
    """`tuple` of an iterator fails if another thread gets hold of the tuple that it fills."""
    objects = TrackedObjects(_selection)
    is_done = Event()

    def make() -> int:
        while not is_done.is_set():
            assert tuple(iter_of_python(100)) == tuple(range(100))
        return 1

    def iter_of_python(size: int) -> Iterator[int]:
        yield from range(size)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            making = [pool.submit(make) for _ in range(2)]
            try:
                for _ in range(3 if are_frozen else 20):
                    if are_frozen:
                        gc.freeze()
                    objects.by_type()
            finally:
                is_done.set()
            assert [one.result(60) for one in making] == [1, 1]
    finally:
        sys.setswitchinterval(interval)
