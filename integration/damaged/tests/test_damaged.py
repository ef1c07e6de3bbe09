"""Readers of damaged files return a value or raise an error of their package, and run no code."""

import ast
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from damaged.damage import VALUES, damage
from damaged.readers import PACKAGES, READERS, read
from frontends import Plan
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

LONGEST_S = 60
"""Of processor time for one file; whoever takes longer is stuck in it."""
COMMANDS = [name for name, reader in READERS.items() if reader.is_command]
FUNCTIONS = [name for name in READERS if name not in COMMANDS]
ALSO_NEEDS = {
    "frontends index of weights": "the files that it lists",
    "frontends plan --cluster": "a model, which would be planned",
    "frontends verify": "layouts, which plans of format 1 lack",
}
"""Readers that refuse files that are right, for lack of something else."""
SEEDS = st.integers(0, 2**64 - 1)
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller seed is no smaller file


@contextmanager
def limit() -> Iterator[None]:
    """Interrupt what computes for too long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"reading takes more than {LONGEST_S} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def damaged(name: str, seed: int, folder: Path) -> Path:
    """A damaged file for a reader."""
    rng = random.Random(seed)
    path = folder / f"file{READERS[name].suffix}"
    path.write_bytes(damage(rng.choice(READERS[name].files()), rng))
    return path


@pytest.mark.parametrize("name", READERS)
def test_whole_files_are_read(name: str, folder: Path) -> None:
    for content in READERS[name].files():
        path = folder / f"whole{READERS[name].suffix}"
        path.write_bytes(content)
        result = read(READERS[name], path)
        assert name in ALSO_NEEDS or not (isinstance(result, Exception) or result in (1, 2))


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(phases=NO_SHRINKING)
@given(seed=SEEDS)
def test_a_damaged_file_is_a_value_or_an_error_of_the_package(
    name: str, folder: Path, seed: int
) -> None:
    path = damaged(name, seed, folder)
    with limit():
        result = read(READERS[name], path)
    if isinstance(result, Exception):
        assert str(result)


@pytest.mark.parametrize("name", COMMANDS)
@settings(phases=NO_SHRINKING, max_examples=settings().max_examples // 4)
@given(seed=SEEDS)
def test_a_command_ends_with_a_status_for_a_damaged_file(
    name: str, folder: Path, seed: int
) -> None:
    path = damaged(name, seed, folder)
    with limit():
        assert read(READERS[name], path) in (None, 0, 1, 2)


def test_a_page_shows_names_and_does_not_run_them(folder: Path) -> None:
    plan = READERS["frontends.Plan.load"].files()[-1].decode()
    for name in ("two-hosts", "params[0]['b']"):
        assert name in plan
        plan = plan.replace(name, f"{name}</script><script>alert(1)</script>")
    path = folder / "named.json"
    path.write_text(plan)
    page = Plan.load(path).html()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


@given(seed=SEEDS)
def test_damage_depends_on_the_seed_alone(seed: int) -> None:
    before = repr(VALUES)
    content = READERS["stagecut.StagePlan"].files()[0]
    first = damage(content, random.Random(seed))
    assert first == damage(content, random.Random(seed))
    assert repr(VALUES) == before


RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "code"}
MAY = {
    "costmodel/calibrate/backend.py": "imports the module of a backend, by a name of its table",
    "frontends/torch/api/checkpoint.py": "its docstring and SECURITY.md say what unpickling can do",
    "frontends/torch/capture/generators.py": "states of the process's own random generators",
    "frontends/torch/capture/refusals.py": "states of the process's own random generators",
    "frontends/torch/fuzzing/grammar.py": "runs the programs that it writes itself",
    "frontends/cli/demo/subject.py": "--model FILE.py:FUNCTION runs the file",
    "shardspec/notation/__init__.py": "imports one of its own modules, by a name of its table",
    "stagecut/base/workers.py": "writes only: whether a function can be sent to a process",
}
"""The modules that may run code or unpickle, each with the reason."""


def test_only_known_modules_unpickle_or_run_code() -> None:
    found = set()
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__")):
                    found.add(path)
                case ast.Import(names=names) if any(a.name in RUNS_CODE for a in names):
                    found.add(path)
                case ast.ImportFrom(module=str(module)) if module in RUNS_CODE:
                    found.add(path)
                case ast.ImportFrom(names=names) if any(a.name == "import_module" for a in names):
                    found.add(path)
                case ast.Attribute(
                    attr="exec_module" | "spec_from_file_location" | "import_module"
                ):
                    found.add(path)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="torch" | "np" | "numpy"), attr="load")
                ):
                    found.add(path)
    assert {"/".join(path.parts[path.parts.index("src") + 1 :]) for path in found} == set(MAY)
