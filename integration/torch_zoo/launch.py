"""Start four processes that train models of the zoo, and gather their results."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launching import run

from torch_zoo.check import N_DEVICES, Found, as_found

RANK = Path(__file__).with_name("rank.py")

_N, _SCRIPTS = str(N_DEVICES), Path(sys.executable).parent
LAUNCHERS: dict[str, tuple[str, ...]] = {
    "torchrun": (str(_SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", _N),
    "mpiexec": (str(_SCRIPTS / "mpiexec"), "-n", _N, sys.executable),
}
"""The command that stands before a program and its arguments."""

LAUNCHED = ("GPT-2", "Llama", "Mixtral", "T5", "BERT", "ViT", "Whisper", "U-Net")
"""Models of all kinds: decoders, mixtures of experts, encoders, encoders with decoders, models of
images and of sounds, convolutions."""

LAUNCHED_WAYS = ("2 x 2", "2 stages of 2")
"""Data and tensor parallelism, and a pipeline."""

_TIMEOUT_S = 120
"""Limit for each model, on a machine that does other work too."""


def launch(launcher: str, cases: Sequence[tuple[str, str]]) -> list[Found]:
    """Train models of the zoo in four processes.

    Args:
        launcher: One of `LAUNCHERS`.
        cases: Pairs of a model's name and the name of the way that lays it over the processes.

    Returns:
        A result for each case: the differences of the process that is farthest from eager, and the
        collectives of all processes together.

    Raises:
        RuntimeError: A process failed; its output is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = run(
            [*LAUNCHERS[launcher], RANK, folder, *("/".join(case) for case in cases)],
            deadline_s=_TIMEOUT_S * (1 + len(cases)),
        )
        if ended.status:
            raise RuntimeError(f"processes ended with {ended.status}: {ended.output[-6000:]}")
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    by_case = [[as_found(fields) for fields in of_ranks] for of_ranks in zip(*ranks, strict=True)]
    return [
        replace(
            of_ranks[0],
            loss=max(each.loss for each in of_ranks),
            parameters=max(each.parameters for each in of_ranks),
            n_collectives=sum(each.n_collectives for each in of_ranks),
        )
        for of_ranks in by_case
    ]
