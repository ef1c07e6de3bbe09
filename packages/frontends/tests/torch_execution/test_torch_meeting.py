"""Processes that torchrun starts again meet each other, whatever earlier starts have left."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from frontends.errors import DeviceError
from frontends.torch.run import meeting
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore, TCPStore


def start(store: HashStore, size: int, present: set[int], start_s: float) -> list[str]:
    """What each process of a start agrees on; the errors of those that wait for others."""

    def agreed(rank: int) -> str:
        try:
            return meeting._agreed(store, rank, size, start_s)
        except DeviceError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(agreed, sorted(present))]


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_each_start_agrees_on_a_name_of_its_own(sizes: list[int]) -> None:
    store = HashStore()
    names = [start(store, size, {*range(size)}, 20.0) for size in sizes]
    assert [len(set(each)) for each in names] == [1] * len(sizes)
    assert len({each[0] for each in names}) == len(sizes)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_process_that_has_not_started_is_named(missing: int) -> None:
    store = HashStore()
    start(store, 3, {0, 1, 2}, 20.0)  # of which words, names and acceptances stay
    said = start(store, 3, {0, 1, 2} - {missing}, 0.4)
    assert any(f"process {missing} has not" in each for each in said)
    assert len(set(start(store, 3, {0, 1, 2}, 20.0))) == 1


def test_an_agent_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    found = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in found.items():
        monkeypatch.setitem(os.environ, name, value)
    with pytest.raises(DeviceError, match=rf"agent, at localhost:{port}; process 1 cannot use it"):
        meeting.store_of_this_start(timedelta(seconds=1), 1.0)


def test_the_store_of_a_start_has_none_of_the_keys_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    agents = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    found = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in found.items():
        monkeypatch.setitem(os.environ, name, value)
    first, second = (meeting.store_of_this_start(timedelta(seconds=9), 9.0)[0] for _ in range(2))
    first.set("address", "gone")
    assert first.check(["address"])
    assert not second.check(["address"])
    del agents
