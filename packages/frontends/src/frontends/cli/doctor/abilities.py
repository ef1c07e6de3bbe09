"""What will work here, and for everything else what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from frontends.cli.doctor.machine import Surroundings
from frontends.cli.doctor.probes import Reply
from frontends.cli.doctor.requirements import DISTRIBUTION, Needed, installed

JAX, TORCH = "JAX steps: plan and run", "PyTorch steps: plan and run"


@dataclass(frozen=True, slots=True)
class Lack:
    """A reason why something does not work."""

    reason: str
    remedy: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that a user may want to do."""

    what: str
    lacks: tuple[Lack, ...] = ()
    """Why it does not work; none if it does."""

    @property
    def works(self) -> bool:
        """Whether it will work here."""
        return not self.lacks


def abilities(
    extras: Mapping[str, tuple[Needed, ...]],
    replies: Mapping[str, Reply],
    around: Surroundings,
) -> list[Ability]:
    """All that users may want to do, most important first.

    Args:
        extras: What each extra of this package needs.
        replies: What libraries said when they were asked; those that are not installed have none.
        around: What this machine offers.
    """

    def lacks(*names: str) -> Iterator[Lack]:
        for name in names:
            for each in extras[name]:
                reply = replies.get(each.name, Reply())
                if each.lack:
                    yield Lack(each.lack, f"pip install '{DISTRIBUTION}[{name}]'")
                elif reply.is_late:
                    yield Lack(f"{each.name}: {reply.error}", _LONGER)
                elif reply.error:
                    yield Lack(f"{each.name} fails: {reply.error}", f"{_TRY}import {each.name}'")

    def missing(*launchers: str) -> Iterator[Lack]:
        if not set(launchers) & set(around.launchers):
            yield Lack(f"there is no {' and no '.join(launchers)}", _LAUNCHERS[launchers[0]])

    torch = replies.get("torch", Reply())
    no_gloo = [] if torch.facts.get("gloo", torch.error) else [Lack(_NO_GLOO, _GLOO)]
    found = {
        JAX: lacks("jax"),
        TORCH: lacks("torch"),
        "JAX in several processes (mpiexec or srun)": chain(
            lacks("jax", "mpi"), missing("mpiexec", "srun")
        ),
        "PyTorch in several processes (torchrun, by gloo)": chain(
            lacks("torch"), no_gloo, missing("torchrun")
        ),
        "PyTorch in several processes (mpiexec)": chain(lacks("torch", "mpi"), missing("mpiexec")),
        "Models of Hugging Face, by name or config.json": lacks("torch", "models"),
        "Weights in safetensors": lacks("torch", "safetensors"),
        "Checkpoints of JAX steps": lacks("jax", "checkpoint"),
        "Saved plans as text, pictures and HTML pages": (),
        "Building from source": () if around.compiler else [Lack(_NO_COMPILER, _COMPILER)],
    }
    return [Ability(what, tuple(dict.fromkeys(each))) for what, each in found.items()]


_TRY = "see why: python -c '"
_LONGER = "give it longer: meshwright doctor --deadline 300"
_LAUNCHERS = {
    "mpiexec": f"pip install '{DISTRIBUTION}[mpi]', which brings MPICH",
    "torchrun": "install PyTorch again, which brings torchrun",
}
_NO_GLOO = "PyTorch has no gloo here"
_GLOO = "install a PyTorch for this system that has torch.distributed"
_NO_COMPILER = "there is no C++ compiler"
_COMPILER = "install g++ or clang++ (C++17), or name one in $CXX"


def versions(names: tuple[str, ...]) -> list[str]:
    """Name and version of those distributions that are installed."""
    return [f"{name} {version}" for name in names if (version := installed(name)) is not None]
