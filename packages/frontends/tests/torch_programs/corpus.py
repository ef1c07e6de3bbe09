"""All programs, by theme."""

from torch_programs import (
    asked,
    batches,
    dropout,
    gradients,
    hostile,
    hugging_face,
    loops,
    losses,
    modules,
    operators,
    optimizers,
    outside,
    python_state,
    reading,
    schedules,
)
from torch_programs.driver import PROGRAMS

__all__ = [
    "PROGRAMS",
    "asked",
    "batches",
    "dropout",
    "gradients",
    "hostile",
    "hugging_face",
    "loops",
    "losses",
    "modules",
    "operators",
    "optimizers",
    "outside",
    "python_state",
    "reading",
    "schedules",
]
