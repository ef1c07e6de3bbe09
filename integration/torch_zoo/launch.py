"""Start four processes that train models of the zoo, and gather what they found."""

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
"""What a program and its arguments follow."""

LAUNCHED = ("GPT-2", "Llama", "Mixtral", "T5", "BERT", "ViT", "Whisper", "U-Net")
"""Models of all kinds: decoders, experts, encoders with decoders, images, sounds, convolutions."""

LAUNCHED_WAYS = ("2 x 2", "2 stages of 2")
"""Of data and tensor parallelism, and of a pipeline."""

_TIMEOUT_S = 120
"""For each model, on a machine that does other work too."""


def launch(launcher: str, cases: Sequence[tuple[str, str]]) -> list[Found]:
    """Train models of the zoo in four processes.

    Args:
        launcher: One of `LAUNCHERS`.
        cases: Names of models, and of the ways that they are laid over the processes.

    Returns:
        What was found for each, in the process that is farthest from eager.

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
    by_case = [[as_found(fields) for fields in found] for found in zip(*ranks, strict=True)]
    return [
        replace(
            found[0],
            loss=max(each.loss for each in found),
            parameters=max(each.parameters for each in found),
            n_collectives=sum(each.n_collectives for each in found),
        )
        for found in by_case
    ]
