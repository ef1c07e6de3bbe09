"""Algorithms that users register: prices know them, and what cannot be right is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from costmodel import (
    AlgorithmEntry,
    Cluster,
    CollectiveKind,
    Family,
    RegistrationError,
    Rounds,
    UnknownNameError,
    algorithms_of,
    collective_time,
    fastest,
    known_algorithms,
    register_algorithm,
)
from costmodel.testing import clusters, meshes_on
from costmodel.time import algorithm_table
from costmodel.time.algorithm_table import Algorithms
from costmodel.time.algorithms import ENTRIES
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

KINDS = get_args(CollectiveKind)
GROUP = Cluster.preset("two-hosts").links(Mesh((2, 4), ("host", "device"))).group((0, 1))


def at_once(n: int) -> Rounds:
    """What no network does, and no check refuses."""
    return Rounds(1 * (n > 1), 1 * (n > 1))


def slowly(n: int) -> Rounds:
    return Rounds(100 * (n - 1), 100 * (n - 1))


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is not known to others."""
    monkeypatch.setattr(algorithm_table, "_known", Algorithms(ENTRIES))
    monkeypatch.setattr(algorithm_table, "_are_loaded", True)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}: {entry.name}")
def test_ours_are_entries_as_those_of_users_are(entry: AlgorithmEntry) -> None:
    entry.check()


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("kind", KINDS)
def test_a_price_is_that_of_an_algorithm_from_when_it_is_registered_on(
    kind: Any, family: Any
) -> None:
    before = collective_time(kind, 1e8, GROUP)  # and kept, with all that it is made of
    with pytest.raises(UnknownNameError, match=r"; got 'at once'"):
        collective_time(kind, 1e8, GROUP, "at once")
    register_algorithm(kind, "at once", at_once, family=family)
    assert algorithms_of(kind, GROUP)["at once"] == family
    after = collective_time(kind, 1e8, GROUP, "at once")
    assert collective_time(kind, 1e8, GROUP) == fastest(kind, 1e8, GROUP).seconds
    assert fastest(kind, 1e8, GROUP).seconds <= min(before, after)


def test_a_level_of_a_hierarchical_collective_is_done_by_what_users_register() -> None:
    register_algorithm("all_gather", "in the switch", lambda n: Rounds(1 * (n > 1), (n - 1) / n))
    register_algorithm("scatter", "by the switch", at_once)
    phases = fastest("all_reduce", 1e9, GROUP).phases
    assert phases[-1] == "all_gather of 4: in the switch"
    assert known_algorithms().of("scatter").keys() == {"binomial", "by the switch"}


@given(data=st.data(), kind=st.sampled_from(KINDS), n_bytes=st.integers(0, 10**10))
def test_one_more_algorithm_makes_nothing_dearer_and_a_slow_one_nothing_other(
    data: st.DataObject, kind: Any, n_bytes: int
) -> None:
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    group = cluster.links(mesh).group(tuple(range(mesh.ndim)))
    family = data.draw(st.sampled_from(get_args(Family)))
    before, chosen = collective_time(kind, n_bytes, group), fastest(kind, n_bytes, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm_table, "_known", Algorithms(ENTRIES))
        register_algorithm(kind, "slowly", slowly, family=family)
        assert fastest(kind, n_bytes, group) == chosen
        register_algorithm(kind, "at once", at_once, family=family)
        assert collective_time(kind, n_bytes, group) <= before
    assert collective_time(kind, n_bytes, group) == before


def test_algorithms_that_are_known_are_the_same_until_there_is_another() -> None:
    known = known_algorithms()
    assert known_algorithms() is known
    register_algorithm("permute", "slowly", slowly)
    more = known_algorithms()
    assert more is not known
    assert "slowly" not in known.of("permute")
    register_algorithm("permute", "slowly", slowly)
    assert known_algorithms() is more


def fails(n: int) -> Rounds:
    raise ArithmeticError("no power of two")


@pytest.mark.parametrize(
    ("kind", "name", "rounds", "family", "message"),
    [
        ("reduce", "mine", at_once, "tree", r"of one of all_gather, .*scatter; got kind='reduce'"),
        ("permute", "mine", at_once, "bush", r"family .* is one of ring, direct, tree; got family"),
        ("permute", "", at_once, "tree", r"has a name; got name=''"),
        ("permute", 3, at_once, "tree", r"has a name; got name=3"),
        ("permute", "ring", at_once, "tree", r"no family but its own.*'ring' and family='tree'"),
        ("permute", "hierarchical", at_once, "tree", r"no family but its own"),
        ("permute", "pairwise", at_once, "direct", r"there is another pairwise of permute already"),
        ("permute", "mine", fails, "tree", r"mine of permute in a group of 1 .*Arith.*: no power"),
        ("permute", "mine", lambda n: n, "tree", r"are costmodel\.Rounds .* of 1 are 1"),
        (
            "permute",
            "mine",
            lambda n: Rounds(1, -1),
            "tree",
            r"finite numbers from 0 .*; those of mine",
        ),
        (
            "permute",
            "mine",
            lambda n: Rounds(1, "1"),
            "tree",
            r"finite numbers from 0 .*; those of",
        ),
        ("permute", "mine", lambda n: Rounds(10**400, 1), "tree", r"finite numbers from 0 .*"),
        ("permute", "mine", lambda n: Rounds(1, 1), "tree", r"a group of one does nothing; mine"),
        (
            "all_gather",
            "mine",
            lambda n: Rounds(n - 1, (n - 1) / n / 2),
            "tree",
            r"of 2 sends or receives one message and 0\.5 of the bytes of a all_gather; mine",
        ),
        ("broadcast", "mine", lambda n: Rounds(n - 1, (n - 1) / n), "tree", r"message and 1 of"),
    ],
)
def test_what_is_no_algorithm_is_refused_and_nothing_is_registered(
    kind: Any, name: Any, rounds: Any, family: Any, message: str
) -> None:
    known = known_algorithms()
    with pytest.raises(RegistrationError, match=message):
        register_algorithm(kind, name, rounds, family=family)
    assert known_algorithms() is known


INSTALLED = """\
from costmodel import AlgorithmEntry, Rounds

def rounds(n):
    return Rounds(1 * (n > 1), 1 * (n > 1))

SWITCH = AlgorithmEntry("all_reduce", "in the switch", "direct", rounds)
OURS = AlgorithmEntry("all_reduce", "ring", "ring", rounds)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a distribution with entry points where distributions are looked for."""

    def distribution(name: str, **points: str) -> None:
        folder = tmp_path / name
        (info := folder / f"{name}-1.2.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[costmodel.algorithms]", *lines]))
        (folder / f"{name}.py").write_text(INSTALLED)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(algorithm_table, "_are_loaded", False)

    return distribution


def test_an_algorithm_of_a_distribution_is_known_when_something_is_priced(
    install: Callable[..., None],
) -> None:
    install("a_library", switch="a_library:SWITCH")
    assert algorithms_of("all_reduce", GROUP)["in the switch"] == "direct"
    assert known_algorithms() is known_algorithms()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("b_library:nothing", "AttributeError"),
        ("b_library:rounds", "is an AlgorithmEntry; got <function"),
        ("b_library:OURS", "there is another ring of all_reduce already"),
    ],
)
def test_what_a_distribution_has_for_an_algorithm_and_is_none_is_refused(
    value: str, message: str, install: Callable[..., None]
) -> None:
    install("b_library", mine=value)
    for _ in range(2):  # at the second time, too
        with pytest.raises(RegistrationError, match=f"mine of b_library.*{message}.*: mend or"):
            collective_time("all_reduce", 1.0, GROUP)
