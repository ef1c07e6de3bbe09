"""Two elastic agents of torchrun on this machine, as hosts of two and one processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
PROCESSES = (2, 1)
"""Processes of each agent; the first one keeps the meeting point, and stays."""

DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that lost a host."""

    losses: Mapping[int, float]
    """By step, the last loss that was computed."""

    worlds: Sequence[int]
    """The numbers of processes that computed losses, in order, without repeats."""

    output: str


def run(folder: Path, steps: int, every: int, kill_after: int) -> Ended:
    """Run the program by two agents, and kill the second with its process after some step.

    Raises:
        TimeoutError: A step was not reached, or the run did not end, in time.
        RuntimeError: The run failed; the message has the output.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    agents = [_start(folder, port, n, steps, every) for n in PROCESSES]
    try:
        _wait(lambda: len(losses_of(folder)) > kill_after, f"step {kill_after}")
        _kill(agents[1])
        _wait(lambda: agents[0].poll() is not None, "the end of the run")
    finally:
        for agent in agents:
            _kill(agent)
    output = (folder / f"agent{PROCESSES[0]}.log").read_text()
    if agents[0].returncode:
        raise RuntimeError(f"the run ended with {agents[0].returncode}: {output[-6000:]}")
    worlds = [world for _, _, world in _lines(folder)]
    changes = [w for w, before in zip(worlds, [0, *worlds], strict=False) if w != before]
    return Ended(losses_of(folder), changes, output)


def _kill(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and its processes, as if their host lost its power."""
    if agent.poll() is None:
        agent.send_signal(signal.SIGSTOP)  # so that it starts no others
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        for process in (*map(int, children), agent.pid):
            os.kill(process, signal.SIGKILL)
        agent.wait(DEADLINE_S)


def losses_of(folder: Path) -> dict[int, float]:
    """The last loss of each step so far."""
    return {number: loss for number, loss, _ in _lines(folder)}


def _lines(folder: Path) -> list[tuple[int, float, int]]:
    path = folder / "losses.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _start(folder: Path, port: int, n: int, steps: int, every: int) -> subprocess.Popen[bytes]:
    options = ["--nnodes", "1:2", "--nproc-per-node", str(n), "--max-restarts", "3"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    options += ["--rdzv-id", folder.name]
    options += ["--rdzv-conf", f"last_call_timeout=3,is_host={str(n == PROCESSES[0]).lower()}"]
    arguments = [str(PROGRAM), str(folder), str(steps), str(every)]
    with (folder / f"agent{n}.log").open("wb") as log:
        return subprocess.Popen(
            [str(TORCHRUN), *options, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "SLOWLY": "0.1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait(is_done: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not is_done():
        if time.monotonic() > until_s:
            raise TimeoutError(f"a run reaches each step in {DEADLINE_S:g} s; it has not: {what}")
        time.sleep(0.05)
