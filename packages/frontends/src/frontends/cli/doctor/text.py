"""The findings of the doctor, in lines of 80 columns."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shardspec.amounts import bytes_text, count_text

from frontends.cli.doctor.abilities import Ability, versions
from frontends.cli.doctor.machine import Surroundings
from frontends.cli.doctor.probes import Reply
from frontends.cli.doctor.requirements import DISTRIBUTION, SIBLINGS

WIDTH = 80
_LABEL = 14
_LIBRARIES = (
    *("numpy", "jax", "jaxlib", "optax", "flax", "equinox", "orbax-checkpoint", "torch"),
    *("transformers", "safetensors", "ml-dtypes", "mpi4py", "matplotlib"),
)


def doctor_text(
    found: Sequence[Ability], replies: Mapping[str, Reply], around: Surroundings
) -> str:
    """All findings: versions, devices, tools, and what works with the way out where it does not."""
    python = ".".join(map(str, sys.version_info[:3]))
    ours = versions((DISTRIBUTION, *(f"meshwright-{name}" for name in SIBLINGS)))
    lines = [
        *_row("Meshwright", ", ".join(text.removeprefix("meshwright-") for text in ours)),
        *_row("Python", f"{python} on {around.system}"),
        *_row(
            "Machine",
            f"{count_text(around.cores, 'core')}, {bytes_text(around.memory_bytes)} of memory",
        ),
        *_row("Libraries", ", ".join(versions(_LIBRARIES))),
        *_row("JAX sees", _jax_devices(replies.get("jax"))),
        *_row("PyTorch sees", _torch_devices(replies.get("torch"))),
        *_row("C++ compiler", around.compiler or "none"),
        *_row("MPI", str(replies.get("mpi4py", Reply()).facts.get("library", "none"))),
        *_row("Launchers", ", ".join(around.launchers) or "none"),
        "",
        "What works",
    ]
    for ability in found:
        lines += _ability(ability)
    return "\n".join(lines)


def _ability(ability: Ability) -> Iterator[str]:
    yield from _wrapped(f"{'yes' if ability.works else 'no ':<5}{ability.what}", 7)
    for reason in dict.fromkeys(lack.reason for lack in ability.lacks):
        yield from _wrapped(f"{'':7}{reason}", 7)
    for remedy in dict.fromkeys(lack.remedy for lack in ability.lacks):
        yield from _wrapped(f"{'':7}→ {remedy}", 9)


def _row(label: str, content: str) -> list[str]:
    return list(_wrapped(f"{label:<{_LABEL}}{content}", _LABEL))


def _wrapped(text: str, indent: int) -> list[str]:
    """The text in lines of at most `WIDTH` columns, all but the first indented."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return textwrap.wrap(printable, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _jax_devices(reply: Reply | None) -> str:
    if reply is None or reply.error:
        return _none(reply)
    kinds = Counter(map(str, reply.facts.get("devices", ())))
    seen = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no devices"
    return f"{seen}; frontends.jax.init(8) makes 8 virtual devices of the CPU"


def _torch_devices(reply: Reply | None) -> str:
    if reply is None or reply.error:
        return _none(reply)
    kinds = Counter(map(str, reply.facts.get("devices", ())))
    seen = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    backends = [name for name in ("gloo", "nccl") if reply.facts.get(name)]
    return f"{seen or 'the CPU only'}; process groups: {', '.join(backends) or 'none'}"


def _none(reply: Reply | None) -> str:
    return "nothing: it is not installed" if reply is None else f"nothing: {reply.error}"
