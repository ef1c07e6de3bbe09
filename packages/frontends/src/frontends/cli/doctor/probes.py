"""Asks libraries questions, each in a process of its own.

A library that looks for devices may hang, end its process, or print what it likes. None of that
reaches this process, because the answer is the last line that the other one prints, and a process
that has none by the deadline is ended with all processes that it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

PROGRAMS: Mapping[str, str] = {
    "jax": (
        "import json, jax\n"
        "print(json.dumps({'devices': [each.device_kind for each in jax.devices()]}))"
    ),
    "torch": (
        "import json, torch\n"
        "import torch.distributed as dist\n"
        "count = torch.cuda.device_count()\n"
        "print(json.dumps({'devices': [torch.cuda.get_device_name(i) for i in range(count)],\n"
        "    'gloo': dist.is_available() and dist.is_gloo_available(),\n"
        "    'nccl': dist.is_available() and dist.is_nccl_available()}))"
    ),
    "transformers": (
        "import json, transformers\n"
        "transformers.AutoConfig.for_model('llama')\n"
        "transformers.LlamaForCausalLM\n"
        "print(json.dumps({}))"
    ),
    "mpi4py": (
        "import json, mpi4py\n"
        "mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI\n"
        "print(json.dumps({'library': ' '.join(MPI.Get_library_version().split()[:3])}))"
    ),
}
"""By distribution, a program that imports it and prints what it sees as a line of JSON."""

_NAP_S = 0.02
_LONGEST = 200
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a library said, or why it said nothing."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Empty if the library works."""
    is_late: bool = False
    """Whether the error is that there was no answer by the deadline."""


def ask(programs: Mapping[str, str], deadline_s: float) -> dict[str, Reply]:
    """Run Python programs at the same time, and return the reply of each.

    They write into files. A pipe would stay open as long as any process that they have started.

    Args:
        programs: By name, the source of a program that prints a line of JSON at its end.
        deadline_s: When those that still run are ended.
    """
    with ExitStack() as stack:
        asked = {name: stack.enter_context(_started(source)) for name, source in programs.items()}
        until_s = time.monotonic() + deadline_s
        while time.monotonic() < until_s and any(each.poll() is None for each, _ in asked.values()):
            time.sleep(_NAP_S)
        return {name: _reply(*one, deadline_s) for name, one in asked.items()}


_Outputs = tuple[IO[str], IO[str]]


@contextmanager
def _started(source: str) -> Iterator[tuple[subprocess.Popen[bytes], _Outputs]]:
    """A process that runs a program, and its output and errors; ended with all that it started."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield process, (output, errors)
        finally:
            with suppress(ProcessLookupError):  # it has ended, and so have those
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def _reply(process: subprocess.Popen[bytes], outputs: _Outputs, deadline_s: float) -> Reply:
    status = process.poll()
    if status is None:
        return Reply(error=f"it did not answer within {deadline_s:g} s", is_late=True)
    for output in outputs:
        output.seek(0)
    printed, errors = (output.read().strip().rpartition("\n")[2] for output in outputs)
    with suppress(ValueError, RecursionError):
        facts = json.loads(printed)
        if status == 0 and isinstance(facts, dict):
            return Reply(facts)
    return Reply(error=(errors or f"its process ended with status {status}")[:_LONGEST])
