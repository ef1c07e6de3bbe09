import re
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from launching import StillRunningError, burner, run, started

PLENTY_S = 100.0
MPIEXEC = str(Path(sysconfig.get_path("scripts"), "mpiexec"))
LAUNCHERS = {
    "none": [sys.executable],
    "a script": ["sh", "-c", '"$@"; exit $?', "sh", sys.executable],
    "mpiexec": [MPIEXEC, "-n", "2", sys.executable],
}

STUCK = """
import os, sys, time
from pathlib import Path

def stands_here():
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(600)

stands_here()
"""


def test_a_process_that_ends_gives_its_status_and_output() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    ended = run([sys.executable, "-c", code], deadline_s=PLENTY_S)
    assert ended.status == 3
    assert sorted(ended.output.split()) == ["err", "out"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_process_that_hangs_shows_its_stacks_and_is_ended(launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "stuck.py"
    program.write_text(STUCK)
    n = 2 if launcher == "mpiexec" else 1
    with started([*LAUNCHERS[launcher], str(program), str(tmp_path)]) as processes:
        wait_for(lambda: len(list(tmp_path.glob("[0-9]*"))) == n)
        with pytest.raises(
            StillRunningError, match="these were still running, with stacks"
        ) as all_:
            processes.wait(0.1)
    assert len(re.findall(r"stuck.py\"?, line 7 in stands_here", str(all_.value))) == n
    assert not any(alive(int(path.name)) for path in tmp_path.glob("[0-9]*"))


def test_stacks_in_files_of_errors_are_shown(tmp_path: Path) -> None:
    redirected = "import os, sys; os.dup2(os.open(sys.argv[1] + '/0.err', 65), 2)"
    program = tmp_path / "stuck.py"
    program.write_text(redirected + STUCK)
    with started([sys.executable, str(program), str(tmp_path)], errors=tmp_path) as processes:
        wait_for(lambda: list(tmp_path.glob("[0-9][0-9]*")))
        with pytest.raises(StillRunningError, match=r"0.err:\n[^$]* in stands_here"):
            processes.wait(0.1)


def test_a_process_that_outlives_its_parent_is_ended_too(tmp_path: Path) -> None:
    program = tmp_path / "stuck.py"
    program.write_text(STUCK)
    leave = f"{sys.executable} {program} {tmp_path} & exit 0"
    with started(["sh", "-c", leave]) as processes:
        assert processes.wait(PLENTY_S).status == 0
        wait_for(lambda: list(tmp_path.glob("[0-9]*")))
        (pid,) = (int(path.name) for path in tmp_path.glob("[0-9]*"))
        assert alive(pid)
    wait_for(lambda: not alive(pid))


def test_a_process_that_was_started_by_a_started_process_is_ended_too(tmp_path: Path) -> None:
    inner, outer = tmp_path / "stuck.py", tmp_path / "outer.py"
    inner.write_text(STUCK)
    outer.write_text(
        "import sys\nfrom launching import run\n"
        f"run([sys.executable, {str(inner)!r}, {str(tmp_path)!r}], deadline_s={PLENTY_S})"
    )
    path = str(Path(__file__).parents[2])
    with started([sys.executable, str(outer)], env={"PYTHONPATH": path}):
        wait_for(lambda: list(tmp_path.glob("[0-9]*")))
        (pid,) = (int(path.name) for path in tmp_path.glob("[0-9]*"))
    wait_for(lambda: not alive(pid))


def test_check_raises_when_the_processes_have_ended() -> None:
    with started([sys.executable, "-c", "print('no such model')"]) as processes:
        with pytest.raises(AssertionError, match=r"they ended with 0:\nno such model"):
            wait_for(processes.check)
        processes.wait(PLENTY_S)


def test_a_run_does_not_end_the_processes_of_another_one(tmp_path: Path) -> None:
    program = tmp_path / "stuck.py"
    program.write_text(STUCK)
    with started([sys.executable, str(program), str(tmp_path)]):
        wait_for(lambda: list(tmp_path.glob("[0-9]*")))
        (pid,) = (int(path.name) for path in tmp_path.glob("[0-9]*"))
        run([sys.executable, "-c", "pass"], deadline_s=PLENTY_S)
        assert alive(pid)


def test_a_burner_ends_with_its_block() -> None:
    with burner():
        pass


def wait_for(condition) -> None:
    until_s = time.monotonic() + PLENTY_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)
