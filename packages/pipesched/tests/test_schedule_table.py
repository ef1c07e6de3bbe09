"""Schedules that others have: registered by a function, or found as entry points."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pipesched import (
    ArgumentError,
    ClosedForm,
    KnownForm,
    RegistrationError,
    Schedule,
    UnknownScheduleError,
    closed_form,
    is_schedule,
    make,
    register_schedule,
    schedule_entry,
    schedule_names,
    with_communication,
)
from pipesched.generators import schedules
from pipesched.generators.table import ScheduleTable


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a table of its own."""
    monkeypatch.setattr(schedules, "_TABLE", ScheduleTable(schedules._OURS))


def named(name: str, of: str = "1f1b") -> Callable[[int, int], Schedule]:
    """A generator of a known schedule under another name."""

    def generator(n_stages: int, n_microbatches: int) -> Schedule:
        return replace(make(of, n_stages, n_microbatches), name=name)

    return generator


def test_a_registered_schedule_is_known_as_ours_are() -> None:
    form = KnownForm(lambda s: ClosedForm(s.f * s.p, s.f, s.m, "mine"), "m > 1", lambda s: s.m > 1)
    register_schedule("mine", named("mine", "zb-v"), closed_form=form)
    assert make("mine", 4, 8).ranks == make("zb-v", 4, 8).ranks
    assert schedule_names() == (*schedules.NAMES, "mine")
    assert schedule_entry("mine").stages_a_rank == 2
    seconds = {"forward_s": 1.0, "input_gradient_s": 1.0, "weight_gradient_s": 1.0}
    assert closed_form("mine", 4, 8, **seconds) == ClosedForm(2.0, 1.0, 8, "mine")
    with pytest.raises(ArgumentError, match="of mine is known if: m > 1; got p=2, m=1"):
        closed_form("mine", 4, 1, **seconds)


@pytest.mark.parametrize("name", [n for n in schedules.NAMES if schedule_entry(n).has_chunks])
@pytest.mark.parametrize("n_chunks", [1, 3, 4])
def test_a_name_can_say_the_stages_of_a_rank(name: str, n_chunks: int) -> None:
    full = f"{name}:{n_chunks}"
    assert is_schedule(full)
    entry = schedule_entry(full)
    entry.check()
    assert (entry.name, entry.stages_a_rank, entry.has_chunks) == (full, n_chunks, False)
    made = make(full, 2 * n_chunks, 5)
    assert made == replace(make(name, 2 * n_chunks, 5, n_chunks=n_chunks), name=full)
    assert Schedule.parse(str(made)) == made
    assert full not in schedule_names()


def test_a_registered_schedule_can_have_chunks() -> None:
    def generator(n_stages: int, n_microbatches: int, *, n_chunks: int = 1) -> Schedule:
        made = make("looped-bfs", n_stages, n_microbatches, n_chunks=n_chunks)
        return replace(made, name="mine")

    register_schedule("mine", generator)
    assert schedule_entry("mine:3").stages_a_rank == 3


@pytest.mark.parametrize("name", ["1f1b:2", "none:2", "looped-bfs:0", "looped-bfs:x", ":2", 7])
def test_other_names_with_chunks_are_unknown(name: str) -> None:
    assert not is_schedule(name)
    with pytest.raises(UnknownScheduleError):
        schedule_entry(name)


def test_registering_the_same_twice_changes_nothing() -> None:
    generator = named("mine")
    register_schedule("mine", generator)
    register_schedule("mine", generator)
    with pytest.raises(RegistrationError, match="there is another mine already: register it once"):
        register_schedule("mine", named("mine"))


def failing(n_stages: int, n_microbatches: int) -> Schedule:
    raise ArgumentError(f"never; got n_stages={n_stages}")


def swapped(n_stages: int, n_microbatches: int) -> Schedule:
    made = named("mine")(n_stages, n_microbatches)
    return replace(made, ranks=made.ranks[::-1], placement=made.placement)


def uneven(n_stages: int, n_microbatches: int) -> Schedule:
    first, second, *others = make("gpipe", n_stages, n_microbatches).ranks
    n = n_microbatches
    joint = (*first[:n], *second[:n], *second[n:], *first[n:])
    return Schedule("mine", n_stages, n_microbatches, (joint, *others))


@pytest.mark.parametrize(
    ("name", "generator", "options", "message"),
    [
        ("1f1b", named("1f1b"), {}, "there is another 1f1b already"),
        (1, named("mine"), {}, r"one word without a \+, and not search; got name=1"),
        ("a b", named("a b"), {}, "got name='a b'"),
        ("search", named("search"), {}, "got name='search'"),
        ("mine", "1f1b", {}, "to a Schedule; the generator of mine is '1f1b'"),
        ("mine", named("mine"), {"case": 4}, "a schedule that exists; the case of mine is 4"),
        ("mine", named("mine"), {"case": (0, 4)}, r"the case of mine is \(0, 4\)"),
        ("mine", named("mine"), {"closed_form": len}, "None; the closed form of mine is <built"),
        ("mine", failing, {}, "of mine of 4 stages and 8 .*ArgumentError: never; got n_stages=4: "),
        ("mine", failing, {"case": (2, 3)}, "n_stages=2: give a case= for which there is a"),
        ("mine", lambda *sizes: str(sizes), {}, "makes a Schedule; that of mine .* makes '"),
        ("mine", named("other"), {}, "and 8 microbatches is called other, and has 4 st"),
        ("mine", lambda s, m: named("mine")(s, m + 1), {}, "called mine, and has 4 .* 9 micro"),
        ("mine", lambda *n: with_communication(named("mine")(*n)), {}, "leaves sends, receives"),
        ("mine", uneven, {}, "equally many stages; those of mine .* run 1 to 2"),
        ("mine", swapped, {}, "passes pipesched.check; mine of .*: placement: "),
    ],
)
def test_what_is_no_schedule_is_refused(
    name: str, generator: Callable[..., Schedule], options: dict[str, object], message: str
) -> None:
    with pytest.raises(RegistrationError, match=message):
        register_schedule(name, generator, **options)  # type: ignore[arg-type]
    assert schedule_names() == schedules.NAMES


INSTALLED = """\
from dataclasses import replace
from pipesched import ScheduleEntry, make

def steady(n_stages, n_microbatches):
    return replace(make("1f1b", n_stages, n_microbatches), name="steady")

STEADY = ScheduleEntry("steady", steady)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a distribution with entry points where distributions are looked for."""

    def distribution(name: str, **points: str) -> None:
        folder = tmp_path / name
        (info := folder / f"{name}-1.2.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[pipesched.schedules]", *lines]))
        (folder / f"{name}.py").write_text(INSTALLED)
        monkeypatch.syspath_prepend(folder)

    return distribution


def test_a_schedule_of_a_distribution_is_found_by_its_name(install: Callable[..., None]) -> None:
    install("yours", steady="yours:STEADY", broken="yours:nothing", other="yours:STEADY")
    assert {"steady", "broken", "other"} == {*schedule_names()} - {*schedules.NAMES}
    assert make("steady", 2, 3).ranks == make("1f1b", 2, 3).ranks
    assert schedule_entry("steady") is schedule_entry("steady")
    for name, what in (("broken", "AttributeError"), ("other", "an entry point is .* of its name")):
        message = f"{name} of yours 1.2, which is yours:.*{what}.*: repair or uninstall the dis"
        with pytest.raises(RegistrationError, match=message):
            make(name, 2, 3)
    with pytest.raises(RegistrationError, match=r"yours 1\.2 has another steady: give yours anot"):
        ScheduleTable(schedules._OURS).add(replace(schedule_entry("steady"), case=(2, 2)))


def test_distributions_have_no_schedules_of_one_name(install: Callable[..., None]) -> None:
    install("yours", steady="yours:STEADY")
    install("theirs", steady="theirs:STEADY")
    with pytest.raises(RegistrationError, match=r"s 1.2 has steady, and .*s 1.2 has another: unin"):
        schedule_names()


def test_distributions_have_no_schedules_called_as_ours(install: Callable[..., None]) -> None:
    install("yours", gpipe="yours:STEADY")
    assert make("gpipe", 2, 3).name == "gpipe"
    with pytest.raises(RegistrationError, match=r"yours 1\.2 has gpipe, and another is there"):
        schedule_names()


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(UnknownScheduleError, match=r"or registered by pipesched\.register_sch"):
        schedule_entry("mine")
