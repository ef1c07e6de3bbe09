"""What a process says to the others, before and after its work."""

import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from frontends.base.heartbeat import Watch
from launching import run


class Texts:
    """A store that keeps what it is given."""

    keeper = "nobody"

    def __init__(self) -> None:
        self.there: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        self.there[key] = text

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        return {n: self.there[folder + n] for n in names if folder + n in self.there}

    def wait(self, key: str, seconds: float) -> str | None:
        return self.there.get(key)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """What a watch changes in its process."""
    hook, handler = sys.excepthook, signal.getsignal(signal.SIGTERM)
    yield
    sys.excepthook = hook
    signal.signal(signal.SIGTERM, handler)


def test_a_process_is_heard_of_from_the_beginning_to_its_end() -> None:
    store = Texts()
    watch = Watch(store, 0, 2, deadline_s=1e6)
    (said,) = store.there.values()
    assert said.endswith("|0 -1"), "whoever is killed now is missed"
    with watch.step(lambda error: False) as watched:
        watched.place = 7
        assert watch.position == (0, 7)
    watch.close()
    (said,) = store.there.values()
    assert (said.split("|")[0], said.split("|")[2]) == ("ended", "1 -1")


def test_what_is_in_the_store_is_asked_without_waiting_in_it() -> None:
    store = Texts()
    watch = Watch(store, 0, 2, deadline_s=1e6)
    store.wait = lambda key, seconds: pytest.fail("another thread may wait in the store")
    store.put("said/3/1", "word")
    assert watch._has("said/3/1")
    assert not watch._has("said/3/0")
    watch.close()


def test_a_process_ends_also_if_its_store_does_not_answer_any_more() -> None:
    store, hangs = Texts(), threading.Event()
    watch = Watch(store, 0, 2, deadline_s=0.5)
    watch.position = 1, -1
    store.put = lambda key, text: hangs.wait(300)
    watch.close()
    (said,) = store.there.values()
    assert not said.startswith("ended"), "nobody could be told"
    hangs.set()


def test_the_reason_of_a_failure_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(Texts(), 0, 2, deadline_s=1e6)
    waited: list[float | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            threading.Thread, "join", lambda thread, seconds=None: waited.append(seconds)
        )
        for _ in range(2):
            with pytest.raises(ConnectionError), watch.step(lambda error: True):
                raise ConnectionError("closed by peer")
    assert waited == [2e6, 0.0]
    watch.close()


class Listener(Texts):
    """A store of which another process, 1, says its last word when it has been read three times."""

    n_reads = 0

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        self.n_reads += 1
        if self.n_reads == 3:
            self.put(f"{folder}1", "told|host|0 -1")
        return super().read(folder, names)


def test_who_fails_stays_until_the_others_have_said_why_they_end() -> None:
    store = Listener()
    store.put("meshwright/watch/1", "3|host|0 -1")
    watch = Watch(store, 0, 2, deadline_s=1e6)
    watch.fail(ValueError("no batch left"))
    watch.close()
    assert store.there["meshwright/watch/1"].startswith("told"), "mpiexec would kill it unheard"
    assert store.there["meshwright/watch/0"].startswith("failed"), "what others are to hear"


TWICE = """
import socket

import jax
from frontends.errors import DeviceError
from frontends.jax.run.watch import watch


def join():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)


join()
assert watch() is watch()
jax.distributed.shutdown()
join()
try:
    watch()
except DeviceError as error:
    print(error)
"""


def test_processes_that_join_again_are_refused() -> None:
    """The watch would hear, and count, those of before."""
    done = run([sys.executable, "-c", TWICE], deadline_s=300)
    assert (done.status, "start new processes" in done.output) == (0, True), done.output
