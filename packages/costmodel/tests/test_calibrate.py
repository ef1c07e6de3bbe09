import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from costmodel.calibrate import launch
from costmodel.calibrate.backend import require
from costmodel.calibrate.launch import run
from costmodel.calibrate.measure import Progress, group_sizes, measure
from costmodel.calibrate.run import CalibrationJob, calibrate
from costmodel.calibrate.waiting import FOLDER, StepDeadline
from costmodel.errors import CalibrationError, MissingExtraError
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 10_000))
def test_group_sizes_are_powers_of_two_and_all(n):
    sizes = group_sizes(n)
    assert all(2 <= size <= n and (size == n or size & (size - 1) == 0) for size in sizes)
    assert sizes == tuple(sorted(set(sizes)))
    assert n == 1 or sizes[-1] == n


class Pretended:
    """A backend whose operations are counted, and said to take 8 ms by the batch."""

    rank, n_processes = 0, 4
    kinds = ("point_to_point", "all_reduce")
    dtypes = ("float32",)
    versions = ()

    def __init__(self):
        self.asked = []

    def collective(self, kind, n, n_bytes):
        self.asked.append((kind, n, n_bytes))
        return lambda times: None

    def matmul(self, m, n, k, dtype):
        return lambda times: None

    def stream(self, n_bytes):
        return lambda times: None

    def slowest(self, seconds):
        return [0.008] * len(seconds)

    def close(self):
        pass


@pytest.fixture
def watch():
    watch = StepDeadline(0, 4, 1e6)
    yield watch
    watch.finish()


def test_measures_every_collective_group_and_size_in_turn_five_times(watch):
    backend = Pretended()
    points = measure(backend, watch, (256, 4096), 0.0, lambda progress: None)
    assert backend.asked == 5 * [
        ("point_to_point", 2, 256),
        ("point_to_point", 2, 4096),
        ("all_reduce", 2, 256),
        ("all_reduce", 2, 4096),
        ("all_reduce", 4, 256),
        ("all_reduce", 4, 4096),
    ]
    assert [(p.kind, p.n, p.n_bytes) for p in points.collectives] == backend.asked[:6]


def test_sizes_are_rounded_up_to_whole_parts(watch):
    backend = Pretended()
    measure(backend, watch, (1, 17), 0.0, lambda progress: None)
    assert [of[1:] for of in backend.asked if of[0] == "all_reduce"][:4] == [
        (2, 8),
        (2, 24),
        (4, 16),
        (4, 32),
    ]


def test_a_point_has_five_batches_even_without_time_and_not_many_more_with_it(watch):
    few = measure(Pretended(), watch, (256,), 0.0, lambda progress: None)
    many = measure(Pretended(), watch, (256,), 1e6, lambda progress: None)
    assert {len(point.seconds) for point in few.collectives} == {5}
    assert {len(point.seconds) for point in many.collectives} == {25}


def test_time_is_of_one_operation(watch):
    points = measure(Pretended(), watch, (256,), 0.0, lambda progress: None)
    assert {s for p in points.matmuls for s in p.seconds} == {0.004}  # two in a batch


def test_progress_counts_up_to_all(watch):
    seen: list[Progress] = []
    measure(Pretended(), watch, (256,), 0.0, seen.append)
    assert [one.done for one in seen] == list(range(seen[-1].total + 1))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def watches(deadline_s=1e6, n=2):
    complaints = []
    return [
        StepDeadline(rank, n, deadline_s, end=complaints.append) for rank in range(n)
    ], complaints


def test_a_rank_that_hangs_is_named_by_the_one_that_waits(notes):
    (first, second), _ = watches()
    for watch in (first, second):
        watch.begin("stream")
    first.begin("all_reduce")
    assert first.complaint() == (
        "rank 0 has been in all_reduce for more than 1e+06 s "
        "and waits for rank 1, which is still in stream"
    )
    assert second.complaint().endswith("give it more time with --deadline-s, or measure less")


def test_a_rank_that_is_stopped_in_the_same_step_is_named(notes):
    (first, second), _ = watches()
    for watch in (first, second):
        watch.begin("all_reduce")
    second.finish()
    os.utime(notes / "rank-1", (0, 0))
    assert first.complaint().endswith(
        "waits for rank 1, which has given no sign of life since all_reduce"
    )


def test_ranks_without_notes_are_named_too(notes):
    (first, _, _), _ = watches(n=3)
    (notes / "rank-2").unlink()
    assert first.complaint().endswith("waits for rank 2, of which nothing is known")


def test_a_passed_deadline_ends_the_rank():
    import threading

    over = threading.Event()
    StepDeadline(0, 1, 0.01, end=lambda message: over.set())
    assert over.wait(60)


def ranks(tmp_path: Path, script: str, *, n: int = 2, limit_s: float = 60.0) -> None:
    path = tmp_path / "rank.py"
    path.write_text(textwrap.dedent(script))
    run("torch", n, (str(path),), limit_s)


def test_ranks_know_themselves_and_have_one_thread(tmp_path):
    ranks(
        tmp_path,
        """
        import os
        assert os.environ["RANK"] in "01" and os.environ["WORLD_SIZE"] == "2"
        assert os.environ["OMP_NUM_THREADS"] == "1" and int(os.environ["MASTER_PORT"]) > 0
        """,
    )


def test_a_rank_that_hangs_ends_all_with_who_waits_for_whom(tmp_path):
    script = """
        import os, time
        from costmodel.calibrate.waiting import StepDeadline
        rank = int(os.environ["RANK"])
        watch = StepDeadline(rank, 2, 1e6 if rank else 1.0)
        watch.begin("matmul")
        if rank == 0:
            watch.begin("all_reduce")
        time.sleep(1e6)
        """
    expected = "rank 0 has been in all_reduce .* waits for rank 1, which"
    with pytest.raises(CalibrationError, match=expected):
        ranks(tmp_path, script)


def test_a_killed_rank_is_named_by_its_signal(tmp_path):
    script = """
        import os, signal, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1e6)
        """
    with pytest.raises(CalibrationError, match="process 1 of the ranks ended with signal SIGKILL"):
        ranks(tmp_path, script)


def test_a_rank_that_ends_without_a_word_is_named(tmp_path):
    with pytest.raises(CalibrationError, match="process 0 of the ranks ended with exit code 3"):
        ranks(tmp_path, "raise SystemExit(3)", n=1)


def test_ranks_that_never_end_are_ended(tmp_path):
    script = "import pathlib, os, time; pathlib.Path('{}').write_text(str(os.getpid()))\n"
    script = script.format(tmp_path / "pid") + "time.sleep(1e6)"
    with pytest.raises(CalibrationError, match="process 0 of the ranks was not done after 2 s"):
        ranks(tmp_path, script, n=1, limit_s=2.0)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_backend_mpi_without_mpiexec_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CalibrationError, match="needs mpiexec beside this Python or on the PATH"):
        run("mpi", 2, ("-c", "pass"), 1.0)


def test_a_launcher_around_is_seen(monkeypatch):
    for name in ("RANK", "PMI_RANK", FOLDER):
        monkeypatch.delenv(name, raising=False)
    assert not launch.is_inside("torch")
    monkeypatch.setenv("RANK", "3")
    assert launch.is_inside("torch")
    assert launch.rank("torch") == 3
    assert not launch.is_inside("mpi")
    monkeypatch.setenv("PMI_RANK", "1")
    assert launch.rank("mpi") == 1


def test_a_framework_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match=r"backend mpi .*meshwright-costmodel\[mpi\]"):
        require("mpi")


def test_a_profile_that_cannot_be_written_is_refused_before_the_measurement(tmp_path):
    job = CalibrationJob("torch", 2, (256,), 1.0, 1.0, tmp_path / "nowhere" / "profile.json")
    with pytest.raises(CalibrationError, match="needs a folder that can be written to"):
        calibrate(job, (), lambda progress: None)


def test_importing_the_calibration_imports_no_framework():
    script = (
        "import sys, costmodel.cli, costmodel.calibrate.run; "
        "print({'torch', 'jax', 'mpi4py', 'scipy', 'matplotlib'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=300,
    )
    assert done.stdout == "set()\n"


def test_batches_of_fast_operations_grow_until_the_clock_does_not_count(watch):
    class Fast(Pretended):
        times = 0

        def collective(self, kind, n, n_bytes):
            def repeat(times):
                self.times = times

            return repeat

        def slowest(self, seconds):
            return [1e-5 * self.times] * len(seconds)

    (point, *_) = measure(Fast(), watch, (256,), 0.0, lambda progress: None).collectives
    assert point.seconds == (1e-5,) * 5
