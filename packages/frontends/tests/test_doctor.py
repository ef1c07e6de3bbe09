"""`meshwright doctor`: what it finds here, in broken installations, and where a library hangs."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path

import frontends
import pytest
from frontends.cli.doctor.abilities import JAX, TORCH, Ability, Lack, abilities
from frontends.cli.doctor.examine import EXTRAS
from frontends.cli.doctor.machine import Surroundings, look_around
from frontends.cli.doctor.probes import PROGRAMS, Reply, ask
from frontends.cli.doctor.requirements import DISTRIBUTION, Needed, needed
from frontends.cli.doctor.text import WIDTH, doctor_text
from hypothesis import given
from hypothesis import strategies as st

DEADLINE_S = 300.0
AROUND = Surroundings("Linux x86_64", 2, 1 << 34, "g++ 12", ("mpiexec", "torchrun"))
REPLIES = {
    "jax": Reply({"devices": ["cpu"]}),
    "torch": Reply({"devices": [], "gloo": True, "nccl": False}),
    "transformers": Reply(),
    "mpi4py": Reply({"library": "MPICH Version: 5.0"}),
}
OUR_EXTRAS = {extra: needed(extra) for extra in EXTRAS}

QUIET = """
import sys
from frontends.cli.commands import main
try:
    main(["doctor", "--deadline", "{deadline}"])
except SystemExit as ended:
    print(ended.code, sorted({{"jax", "torch", "transformers", "mpi4py"}} & sys.modules.keys()))
"""


def doctor(deadline_s: float, **environment: str) -> list[str]:
    """The lines that the doctor prints, then its exit code and the libraries that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", QUIET.format(deadline=deadline_s)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def by_name(found: list[Ability]) -> dict[str, Ability]:
    return {each.what: each for each in found}


def test_it_finds_that_all_works_here_and_imports_nothing_itself() -> None:
    *lines, ended = doctor(DEADLINE_S)
    text = "\n".join(lines)
    assert ended == "0 []"
    assert f"frontends {frontends.__version__}" in text
    assert f"yes  {JAX}" in lines
    assert f"yes  {TORCH}" in lines
    assert max(map(len, lines)) <= WIDTH


def test_where_no_framework_works_it_fails_and_says_why(tmp_path: Path) -> None:
    for name in ("jax", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} for this system')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    *lines, ended = doctor(DEADLINE_S, PYTHONPATH=path)
    assert ended == "1 []"
    assert f"no   {JAX}" in lines
    assert "       jax fails: ImportError: no jax for this system" in lines
    assert "       → see why: python -c 'import torch'" in lines


def test_a_library_that_hangs_is_named() -> None:
    replies = ask({"jax": "import time; time.sleep(600)"}, 1.0)
    found = by_name(abilities(OUR_EXTRAS, REPLIES | replies, AROUND))
    (lack,) = found[JAX].lacks
    assert lack.reason == "jax: it did not answer within 1 s"
    assert "--deadline" in lack.remedy
    assert found[TORCH].works


def test_a_program_that_hangs_is_ended_with_all_that_it_started() -> None:
    name = f"meshwright-{os.getpid()}"
    child = f"import time; {name!r}; time.sleep(600)"
    source = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    assert ask({"slow": source}, 3.0)["slow"].is_late
    # A killed process may still end on the other processor.
    end_s = time.monotonic() + 60.0
    while (left := running(name)) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not left


def running(name: str) -> list[str]:
    """The commands that are running now and contain a name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since
            found.append(path.read_bytes().decode(errors="replace"))
    return [command for command in found if name in command]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ImportError('no library')", "ImportError: no library"),
        ("import os; os.abort()", "its process ended with status -6"),
        ("print('ready')", "its process ended with status 0"),
        ("print([1])", "its process ended with status 0"),
        ("print('{}'); raise SystemExit(3)", "its process ended with status 3"),
        ("print('[' * 100000)", "its process ended with status 0"),
    ],
)
def test_a_program_that_does_not_answer_has_an_error(source: str, error: str) -> None:
    assert ask({"it": source}, DEADLINE_S)["it"] == Reply(error=error)


def test_what_a_library_prints_before_its_answer_does_no_harm() -> None:
    assert ask({"it": "print('hello\\n'); print('{\"a\": 1}')"}, DEADLINE_S)["it"].facts == {"a": 1}


def test_all_works_where_all_is_there() -> None:
    assert [each.what for each in abilities(OUR_EXTRAS, REPLIES, AROUND) if not each.works] == []


def test_what_is_missing_is_said_with_what_to_install() -> None:
    extras = OUR_EXTRAS | {"jax": (Needed("no-such-jax", "1.0"), Needed("numpy", "999.1"))}
    found = by_name(abilities(extras, REPLIES, AROUND))
    reasons = [lack.reason for lack in found[JAX].lacks]
    assert reasons[0] == "no-such-jax is not installed"
    assert re.fullmatch(r"numpy [\d.]+ is installed, and 999.1 or later is needed", reasons[1])
    assert {lack.remedy for lack in found[JAX].lacks} == {f"pip install '{DISTRIBUTION}[jax]'"}
    assert not found["Checkpoints of JAX steps"].works
    assert found[TORCH].works


@pytest.mark.parametrize(
    ("around", "lost"),
    [
        (replace(AROUND, compiler=None), {"Building from source"}),
        (
            replace(AROUND, launchers=()),
            {
                "JAX in several processes (mpiexec or srun)",
                "PyTorch in several processes (torchrun, by gloo)",
                "PyTorch in several processes (mpiexec)",
            },
        ),
        (
            replace(AROUND, launchers=("srun", "torchrun")),
            {"PyTorch in several processes (mpiexec)"},
        ),
    ],
)
def test_without_a_tool_only_that_does_not_work_which_needs_it(
    around: Surroundings, lost: set[str]
) -> None:
    found = abilities(OUR_EXTRAS, REPLIES, around)
    assert {each.what for each in found if not each.works} == lost
    assert all(lack.reason and lack.remedy for each in found for lack in each.lacks)


def test_every_requirement_of_an_extra_is_looked_at() -> None:
    for extra in EXTRAS:
        written = [
            text for text in requires(DISTRIBUTION) or () if re.search(rf"['\"]{extra}['\"]", text)
        ]
        assert len(needed(extra)) == len(written) > 0


def test_every_library_that_is_asked_is_one_that_an_extra_needs() -> None:
    assert PROGRAMS.keys() <= {each.name for extra in EXTRAS for each in needed(extra)}


def test_this_machine_has_cores_and_memory() -> None:
    around = look_around()
    assert around.cores > 0
    assert around.memory_bytes > 0


LACKS = st.builds(Lack, st.text(max_size=200), st.text(max_size=200))
WHAT = st.text(max_size=100).map("something {}".format)
ABILITIES = st.builds(Ability, WHAT, st.lists(LACKS, max_size=3).map(tuple))
ANSWERS = st.builds(
    Reply,
    st.fixed_dictionaries({}, optional={
        "devices": st.lists(st.text(max_size=100), max_size=5), "gloo": st.booleans(),
        "nccl": st.booleans(), "library": st.text(max_size=200)}),
    st.text(max_size=200),
)  # fmt: skip


@given(
    st.lists(ABILITIES, max_size=5),
    st.dictionaries(st.sampled_from(list(PROGRAMS)), ANSWERS),
    st.text(max_size=100),
)
def test_nothing_is_wider_than_a_terminal(
    found: list[Ability], replies: dict[str, Reply], compiler: str
) -> None:
    text = doctor_text(found, replies, replace(AROUND, compiler=compiler))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("\nyes") + text.count("\nno ") == len(found)
