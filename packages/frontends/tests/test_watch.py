"""What a process says to the others, before and after its work."""

import signal
import sys
from collections.abc import Iterator
from threading import Thread

import pytest
from frontends.watch import Watch


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


def test_who_fails_stays_until_the_others_have_said_why_they_end() -> None:
    store = Texts()
    watch = Watch(store, 0, 2, deadline_s=1e6)
    store.put("meshwright/watch/1", "3|host|0 -1")
    watch.fail(ValueError("no batch left"))
    leaving = Thread(target=watch.close)
    leaving.start()
    leaving.join(0.5)
    assert leaving.is_alive(), "a launcher would kill process 1 unheard"
    store.put("meshwright/watch/1", "told|host|0 -1")
    leaving.join(8)
    assert not leaving.is_alive()
