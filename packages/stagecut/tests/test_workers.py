"""Costs that other processes find, and how those end."""

import contextlib
import os
import signal
import subprocess
import sys
from math import hypot

import pytest
from costmodel import Cluster
from stagecut import InvalidInputError, slice_stages
from stagecut.base.workers import workers
from stagecut.cli.demo import demo, joined
from stagecut.models import model
from stagecut.profiles import LayerProfile

NEVER_ENDS = r"""
import os, signal, sys, time
from stagecut import slice_stages

def cost(first, last, submesh):
    os.write(1, b"asked\n")
    if sys.argv[1:] == ["fails"]:
        raise ValueError("no price")
    time.sleep(3600)

if __name__ == "__main__":
    # Where a shell runs tests in the background it has this ignored, and so would Python.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slice_stages(4, (2, 4), 4, cost, processes=2)
"""


def test_other_processes_find_the_same_costs():
    gpt = model("gpt-350m")
    profile = LayerProfile(gpt, joined(gpt, 4), Cluster.preset("p3.16xlarge"), n_microbatches=512)
    alone = slice_stages(4, profile.shape, 512, profile.cost)
    assert slice_stages(4, profile.shape, 512, profile.cost, processes=2) == alone


def test_plans_of_several_numbers_of_microbatches_are_the_same_with_other_processes():
    options = {"n_layers": 6, "n_microbatches": (256, 512), "alternatives": True}
    gpt, cluster = model("gpt-350m"), Cluster.preset("p3.8xlarge")
    assert demo(gpt, cluster, processes=2, **options) == demo(gpt, cluster, **options)


@pytest.mark.parametrize("n_calls", [0, 1, 40])
def test_results_come_in_the_order_of_the_calls(n_calls):
    calls = [(float(n), 2.0) for n in range(n_calls)]
    with workers(hypot, 2) as call:
        assert [list(call(calls)), list(call(calls))] == [[hypot(*each) for each in calls]] * 2


def test_a_cost_that_other_processes_cannot_find_is_refused():
    with pytest.raises(InvalidInputError, match=r"can be pickled, .* got <function .*lambda"):
        slice_stages(4, (1, 2), 4, lambda *_: None, processes=2)


def test_a_process_that_ends_without_an_answer_is_told():
    class Ends:
        """Read by another process, it ends that."""

        def __reduce__(self):
            return os._exit, (3,)

    with pytest.raises(InvalidInputError, match="one ended in a call of"):
        slice_stages(2, (1, 1), 1, Ends(), processes=2)


@pytest.mark.parametrize("processes", [0, 10**6])
def test_rejects_a_number_of_processes_that_no_machine_has(processes):
    with pytest.raises(InvalidInputError, match=f"from 1 to 1,024; got processes={processes}"):
        slice_stages(2, (1, 1), 1, hypot, processes=processes)


@pytest.mark.parametrize("end", ["fails", signal.SIGINT, signal.SIGKILL], ids=str)
def test_processes_end_with_the_search_they_work_for(end, tmp_path):
    script = tmp_path / "search.py"
    script.write_text(NEVER_ENDS)
    with subprocess.Popen(
        [sys.executable, str(script), str(end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as search:
        assert search.stdout.readline() == "asked\n"
        if end == signal.SIGINT:
            os.killpg(search.pid, end)  # as a terminal does, to all of them
        elif end != "fails":
            search.send_signal(end)
        try:
            _, said = search.communicate(timeout=300)  # until nobody has the pipes' other ends
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(search.pid, signal.SIGKILL)
    assert search.returncode == (1 if end == "fails" else -end)
    if end == signal.SIGINT:
        assert said.count("Traceback") == 1, said
