"""What a step is told when its values do not arrive: couriers of one process, on a test's wires."""

import re
import threading
import time

import crossmesh
import numpy as np
import pytest
from crossmesh.errors import TransportError
from crossmesh.testing_transport import Wires, WireTransport
from frontends import ExchangeError
from frontends.errors import PeerError
from frontends.run.lanes import Lane
from frontends.run.mailbox import Courier
from shardspec import Layout, Mesh, Spec

SHORT_S, LONG_S = 0.3, 300.0
"""A deadline that is to pass, and one that is not."""

PROCESSES = (3, 5)
"""Of the lane; 3 has device 0 and sends, 5 has device 1."""

VALUE = np.arange(4, dtype=np.float32)


def lane(*transfers: int) -> Lane:
    """One message for each transfer, in one microbatch."""
    src, dst = (Layout((4,), Mesh((1,), ("x",), (d,)), Spec.parse("R")) for d in (0, 1))
    plan = crossmesh.plan(src, dst, "float32")
    messages = tuple((transfer, 0) for transfer in transfers)
    return Lane(PROCESSES, messages, dict.fromkeys(transfers, plan), frozenset({3}))


class Patient(WireTransport):
    """A transport whose `pause` sleeps, as couriers of one process are threads."""

    def pause(self) -> None:
        time.sleep(1e-3)


def couriers(deadline_s: float, *transfers: int) -> tuple[Courier, Courier]:
    """Those of both processes."""
    wires = Wires({0: 0, 1: 1}, 2)
    ends = {process: Patient(wires, rank) for rank, process in enumerate(PROCESSES)}
    sender, receiver = (
        Courier([lane(*transfers)], process, lambda number, lane, end=end: end, deadline_s)
        for process, end in ends.items()
    )
    return sender, receiver


def test_messages_of_many_steps_arrive() -> None:
    sender, receiver = couriers(LONG_S, 7, 8)
    for step in range(5):
        sender.begin()
        receiver.begin()
        for transfer in (7, 8):
            sender.send(transfer, 0, {0: VALUE + step + transfer})
            (found,) = receiver.receive(transfer, 0).values()
            np.testing.assert_array_equal(found, VALUE + step + transfer)


def test_after_an_exchange_that_failed_every_call_is_refused() -> None:
    sender, receiver = couriers(LONG_S, 7)
    for courier in (sender, receiver):
        courier.begin()
    sender.send(7, 0, {0: VALUE[:3]})  # not the shard that was planned
    said = r"transfer 7 of microbatch 0 between processes 3, 5 failed in process 3: \w+Error: "
    with pytest.raises(ExchangeError, match=said) as failed:
        receiver.receive(7, 0)
    assert isinstance(failed.value, crossmesh.TransferError), "another process's end, from here"
    for refused in (
        sender.begin,
        receiver.begin,
        lambda: sender.send(7, 0, {0: VALUE}),
        lambda: receiver.receive(7, 0),
    ):
        with pytest.raises(ExchangeError, match=said):
            eventually(refused)


def eventually(call) -> None:
    """Calls until it is refused: the other thread has to find out first."""
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        call()
        time.sleep(1e-2)


def test_who_waits_for_what_is_not_sent_says_for_whom() -> None:
    sender, receiver = couriers(SHORT_S, 7)
    for courier in (sender, receiver):
        courier.begin()
    late = (
        "no exchange between processes stands still for 0.3 s; process 5 waits for process 3 in "
        "transfer 7 of microbatch 0 between processes 3, 5: see what it does, or raise deadline_s"
    )
    for _ in range(2):
        with pytest.raises(ExchangeError, match=f"^{re.escape(late)}$"):
            receiver.receive(7, 0)


def test_a_message_that_nobody_waits_for_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("frontends.run.route.monotonic", lambda: now_s[0])
    sender, receiver = couriers(LONG_S, 7)
    for courier in (sender, receiver):
        courier.begin()
    now_s[0] += 10 * LONG_S  # both compute
    sender.send(7, 0, {0: VALUE})
    (found,) = receiver.receive(7, 0).values()
    np.testing.assert_array_equal(found, VALUE)


def test_messages_pile_up_for_two_steps_at_most() -> None:
    sender, _ = couriers(SHORT_S, 7)  # the receiver does not begin
    for _ in range(2):
        sender.begin()
        sender.send(7, 0, {0: VALUE})
    with pytest.raises(ExchangeError, match="process 3 waits for process 5 in transfer 7"):
        sender.begin()


def test_a_thread_that_hangs_in_a_transport_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontends.run.mailbox._GRACE_S", 0.1)
    hangs = threading.Event()
    _, receiver = couriers(SHORT_S, 7)
    monkeypatch.setattr(Patient, "send", lambda *_: hangs.wait(LONG_S))
    receiver.begin()
    with pytest.raises(ExchangeError, match="process 5 waits for process 3 in transfer 7"):
        receiver.receive(7, 0)
    hangs.set()


def test_a_lost_connection_is_an_error_of_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        error = TransportError("Connection closed by peer")
        error.culprits = (0,)  # a rank of the lane: process 3
        raise error

    _, receiver = couriers(SHORT_S, 7)
    monkeypatch.setattr(Patient, "send", lost)
    receiver.begin()
    said = r"in process 5: TransportError: .*closed by peer"
    with pytest.raises(PeerError, match=said) as caught:
        receiver.receive(7, 0)
    assert caught.value.culprits == (3,)


def test_who_ends_waits_until_what_it_sent_has_arrived() -> None:
    """Its process may end after the last step, before the others have all of it."""
    sender, receiver = couriers(LONG_S, 7, 8)
    sender.begin()
    for transfer in (7, 8):
        sender.send(transfer, 0, {0: VALUE})
    sender.end()
    closing = threading.Thread(target=sender.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "nobody has received anything"
    receiver.begin()
    for transfer in (7, 8):
        (found,) = receiver.receive(transfer, 0).values()
        np.testing.assert_array_equal(found, VALUE)
    receiver.end()
    closing.join(60)
    receiver.close()
    assert not closing.is_alive()


def test_who_ends_in_a_step_waits_for_nothing() -> None:
    sender, receiver = couriers(LONG_S, 7)
    for each in (sender, receiver):
        each.begin()
    for each in (sender, receiver):
        each.close()
