"""Asks everything that there is to ask, and writes it down."""

from __future__ import annotations

from frontends.cli.doctor.abilities import JAX, TORCH, abilities
from frontends.cli.doctor.machine import look_around
from frontends.cli.doctor.probes import PROGRAMS, ask
from frontends.cli.doctor.requirements import installed, needed
from frontends.cli.doctor.text import doctor_text

EXTRAS = ("jax", "torch", "models", "checkpoint", "safetensors", "mpi")


def examine(deadline_s: float) -> tuple[str, bool]:
    """Text about this installation, and whether JAX steps or PyTorch steps work in it.

    Args:
        deadline_s: How long libraries may take to answer.
    """
    present = {name: source for name, source in PROGRAMS.items() if installed(name) is not None}
    replies = ask(present, deadline_s)
    around = look_around()
    found = abilities({extra: needed(extra) for extra in EXTRAS}, replies, around)
    usable = any(each.works for each in found if each.what in (JAX, TORCH))
    return doctor_text(found, replies, around), usable
