"""Processes of a host begin when all are there at once; here the others are sockets of the test."""

import os
import socket
import sys
from collections.abc import Callable, Iterator

import pytest
from frontends.base import startup
from frontends.errors import DeviceError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets are Linux's")

Others = dict[int, socket.socket]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    """Sockets of other processes; this is process 0 of three."""
    numbers = {"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    for name, value in numbers.items():
        monkeypatch.setenv(name, value)
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(startup, "_launcher", lambda number: os.getpid())
    found: Others = {}
    yield found
    for bound in found.values():
        bound.close()


def come(others: Others, process: int) -> None:
    others[process] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    others[process].bind(f"\0meshwright-{os.getpid()}-{process}")


def meanwhile(monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], object]) -> None:
    """What happens while process 0 naps, one after the other; then its time is over."""
    left, now_s = list(happens), [0.0]

    def nap(seconds: float) -> None:
        if left:
            left.pop(0)()
        else:
            now_s[0] += 100.0

    monkeypatch.setattr(startup.time, "sleep", nap)
    monkeypatch.setattr(startup.time, "monotonic", lambda: now_s[0])


def test_begins_when_all_are_there(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: come(others, 2), lambda: come(others, 1))
    with startup.roll_call("init", 10.0):
        assert sorted(others) == [1, 2]


def test_does_not_begin_without_one_that_gave_up_before_the_last_came(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    come(others, 1)

    def replace() -> None:
        others.pop(1).close()
        come(others, 2)

    meanwhile(monkeypatch, lambda: None, replace)
    gone = "call init; process 1 of 3 has left again, and process 0 has waited 10 s for it"
    with pytest.raises(DeviceError, match=gone), startup.roll_call("init", 10.0):
        raise AssertionError("process 1 is not there")


def test_names_the_one_that_never_came_rather_than_who_gave_up(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    come(others, 1)
    meanwhile(monkeypatch, lambda: None, lambda: others.pop(1).close())
    absent = r"process 2 of 3 has not, and process 0 has waited 10 s for it \(there are 0, 1\)"
    with pytest.raises(DeviceError, match=absent), startup.roll_call("init", 10.0):
        raise AssertionError("process 2 is not there")
