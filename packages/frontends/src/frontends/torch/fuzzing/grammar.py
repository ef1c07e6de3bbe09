"""Random training programs, written as the source that a user would write."""

from __future__ import annotations

import collections
import copy
import dataclasses
import hashlib
import linecache
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from frontends.torch.fuzzing import layers
from frontends.torch.fuzzing.data import Data
from frontends.torch.fuzzing.snippets import SNIPPETS, Snippet

NAMES: dict[str, Any] = {
    "Data": Data,
    "F": functional,
    "SimpleNamespace": types.SimpleNamespace,
    "UserDict": collections.UserDict,
    "copy": copy,
    "lr_scheduler": lr_scheduler,
    "make_dataclass": dataclasses.make_dataclass,
    "namedtuple": collections.namedtuple,
    "nn": nn,
    "np": np,
    "torch": torch,
    **{
        n: v
        for n, v in vars(layers).items()
        if isinstance(v, type) and v.__module__ == layers.__name__
    },
}
"""The names that the source of a program may use."""

_INPUTS = {
    "rows": ("nn.Linear(6, 8)", "data.normal({n}, 6)"),
    "sequences": ("nn.Linear(6, 8)", "data.normal({n}, {t}, 6)"),
    "tokens": ("nn.Embedding(9, 8)", "data.classes(9, {n}, {t})"),
}
"""By kind of input, the first layer and the expression for a batch."""

_LAYERS = (
    "nn.Tanh()",
    "nn.Linear(8, 8)",
    "nn.GELU()",
    "nn.LayerNorm(8)",
    "nn.Dropout(0.2)",
    "Residual(nn.Linear(8, 8))",
    "Residual(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.1), nn.Linear(16, 8)))",
    "Scaled()",
    "Counting()",
    "Running(8)",
    "shared",
)
_OF_ROWS = ("nn.BatchNorm1d(8)",)
_OF_SEQUENCES = (
    "nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)",
    "First(nn.GRU(8, 8, batch_first=True))",
    "First(nn.LSTM(8, 8, batch_first=True))",
    "Transposed(0.2)",
)

_OPTIMIZERS = (  # no update depends on the sign of a gradient alone, which may be a rounding error
    "torch.optim.SGD({p}, lr=0.1)",
    "torch.optim.SGD({p}, lr=0.05, momentum=0.9)",
    "torch.optim.SGD({p}, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "torch.optim.AdamW({p}, lr=0.02, eps=1e-2)",
    "torch.optim.Adam({p}, lr=0.02, eps=1e-2, amsgrad=True)",
    "torch.optim.NAdam({p}, lr=0.02, eps=1e-2)",
    "torch.optim.RMSprop({p}, lr=0.01, eps=1e-2)",
    "torch.optim.Adagrad({p}, lr=0.05, eps=1e-2)",
)
_GROUPS = (
    "model.parameters()",
    "[{{'params': model[0].parameters(), 'lr': 0.01}}, {{'params': model[1:].parameters()}}]",
)

_ZEROED = ("always", "at the end", "to zeros", "every second call", "never")
_RETURNS = (
    "loss.detach()",
    "{'loss': loss.detach(), 'out': hidden.detach()}",
    "(loss.item(), hidden.argmax(1))",
    "None",
    "loss",
)
_FORMS: dict[str, tuple[str, str, str]] = {
    "dictionary": ("{{{pairs}}}", "batch[{name!r}]", ""),
    "tuple": ("({values},)", "batch[{k}]", ""),
    "nested": ("[{{'all': [{values}]}}, None]", "batch[0]['all'][{k}]", ""),
    "user dict": ("UserDict({{{pairs}}})", "batch[{name!r}]", ""),
    "namespace": ("SimpleNamespace({named})", "batch.{name}", ""),
    "named tuple": ("Batch({values})", "batch.{name}", "Batch = namedtuple('Batch', {names})"),
    "data class": ("Batch({values})", "batch.{name}", "Batch = make_dataclass('Batch', {names})"),
}
"""By form of a batch, the expressions to build it and to read an entry, and its declaration."""


@dataclass(frozen=True)
class Written:
    """A program as source, with the options to run it."""

    source: str
    """Source of a generator function `program(way)` that uses the names in `NAMES`."""

    devices: int
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `judge` and `parallelize`."""

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"@program(devices={self.devices}{options})\n{self.source}"

    def program(self) -> Callable[[Any], Iterator[Any]]:
        """Return the function, in a namespace of its own."""
        file = f"<program {hashlib.sha256(self.source.encode()).hexdigest()[:8]}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)  # so that errors show lines
        names = {**NAMES, "__name__": "written"}
        exec(compile(self.source, file, "exec"), names)
        function: Callable[[Any], Iterator[Any]] = names["program"]
        return function


@st.composite
def programs(draw: st.DrawFn, max_pieces: int = 4) -> Written:
    """Generate programs that make four calls, between and during which anything may change.

    Args:
        draw: Passed by hypothesis.
        max_pieces: How many unusual things a program may do at once.
    """
    kind = draw(st.sampled_from(sorted(_INPUTS)))
    pieces = draw(st.lists(st.sampled_from(SNIPPETS), max_size=max_pieces, unique_by=id))
    choices = [*_LAYERS, *(_OF_ROWS if kind == "rows" else _OF_SEQUENCES)]
    body = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3))
    even = draw(st.booleans())
    source = _written(
        kind,
        body,
        draw(st.sampled_from(_OPTIMIZERS)).format(p=draw(st.sampled_from(_GROUPS)).format()),
        _FORMS[draw(st.sampled_from(sorted(_FORMS)))],
        draw(st.sampled_from(_ZEROED)),
        draw(st.sampled_from(_RETURNS)),
        pieces,
        sizes=(8, 8, 8, 8) if even else draw(st.permutations((8, 8, 4, 5))),
        lengths=(4, 4, 4, 4) if even else draw(st.permutations((4, 4, 6, 3))),
        seed=draw(st.integers(0, 3)),
    )
    options: dict[str, Any] = {"microbatches": draw(st.sampled_from((1, 1, 1, 1, 1, 1, 2)))}
    strategy = draw(st.sampled_from((None, "data_parallel", "zero")))
    if draw(st.booleans()):
        options["looks"] = False
    if strategy is not None:
        options["strategy"] = strategy
    return Written(source, draw(st.sampled_from((1, 2, 4))), options)


def _written(
    kind: str,
    body: Sequence[str],
    optimizer: str,
    form: tuple[str, str, str],
    zeroed: str,
    returned: str,
    pieces: Sequence[Snippet],
    *,
    sizes: Sequence[int],
    lengths: Sequence[int],
    seed: int,
) -> str:
    first, data = _INPUTS[kind]
    fields = [("x", "x"), ("y", "data.classes(3, len(x))")]
    fields += [piece.field for piece in pieces if piece.field is not None]
    fields += [("is_first", "i % 2 == 0")] if zeroed == "every second call" else []
    construct, read, declared = form
    names = [name for name, _ in fields]
    parts = {
        "pairs": ", ".join(f"{name!r}: {value}" for name, value in fields),
        "values": ", ".join(value for _, value in fields),
        "named": ", ".join(f"{name}={value}" for name, value in fields),
        "names": repr(names),
    }
    stack = ", ".join([first, *body, *([] if kind == "rows" else ["Mean()"]), "nn.Linear(8, 3)"])
    begin = {"always": "optimizer.zero_grad()", "to zeros": "model.zero_grad(set_to_none=False)"}
    begin["every second call"] = "if is_first:\n    optimizer.zero_grad()"
    step = [
        *(line for piece in pieces for line in piece.begin),
        *(f"{name} = {read.format(name=name, k=k)}" for k, name in enumerate(names)),
        *begin.get(zeroed, "").splitlines(),
        "hidden = model(x)",
        *(line for piece in pieces for line in piece.hidden),
        "loss = F.cross_entropy(hidden, y)",
        *(line for piece in pieces for line in piece.loss),
        "loss.backward()",
        *(line for piece in pieces for line in piece.gradients),
        "optimizer.step()",
        *(["optimizer.zero_grad()"] if zeroed == "at the end" else []),
        *(line for piece in pieces for line in piece.end),
        f"return {returned}",
    ]
    shown = ", ".join(["seen", *(piece.shown for piece in pieces if piece.shown is not None)])
    x = data.format(n="n", t="t")
    loop = [
        *(line for piece in pieces for line in piece.before),
        f"x = {x}",
        f"seen = step({construct.format(**parts)})",
        *(line for piece in pieces for line in piece.after),
        f"yield ({shown},)",
    ]
    return "\n".join(
        [
            "def program(way):",
            f"    data = Data({seed})",
            *(["    shared = nn.Linear(8, 8)"] if "shared" in body else []),
            *([f"    {declared.format(**parts)}"] if declared else []),
            f"    model = nn.Sequential({stack})",
            f"    optimizer = {optimizer}",
            *(f"    {line}" for piece in pieces for line in piece.setup),
            "",
            "    def train(batch):",
            *(f"        {line}" for line in step),
            "",
            "    step = way.step(train, model, optimizer)",
            f"    for i, (n, t) in enumerate({list(zip(sizes, lengths, strict=True))}):",
            *(f"        {line}" for line in loop),
            "",
        ]
    )
