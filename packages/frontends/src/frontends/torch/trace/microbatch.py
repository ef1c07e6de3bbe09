"""Cut a program to the size of a microbatch, and take out what is computed before the first one.

As in `frontends.jax.trace.microbatch`: one trace is enough, since a microbatch is a shard in time.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from frontends.errors import AccumulationError
from frontends.step.step import APPLY, FORWARD
from frontends.torch.base.blame import planning
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import Flat, Kind, Line, full
from frontends.torch.capture.arguments import Argument
from frontends.torch.rules.rules import call_of_part

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Early:
    """What is computed once a step, on the whole batch, before the first microbatch."""

    program: Flat
    """Reads arguments; its outputs are the values of `makes`. Draws are in the step's order."""

    makes: tuple[Argument, ...]
    """New arguments of the step."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the arguments that are read."""
        read = {name for line in self.program.lines for name in line.inputs}
        read.update(self.program.outputs)
        return tuple(name for name in self.program.inputs if name in read)


def compute_early(
    flat: Flat,
    n_early: int,
    wanted: Mapping[str, Collection[str] | None],
    batch_dim: Mapping[str, int],
) -> tuple[Flat, Early]:
    """Turn values into arguments that are computed beforehand.

    Args:
        flat: The step.
        n_early: How many arguments of this kind it has already.
        wanted: The values, and the lines that read them so; None for all.
        batch_dim: Where values hold examples, if they do.
    """
    made_by = {name: line for line in flat.lines for name in line.outputs}
    alike: dict[object, str] = {}
    everywhere: dict[str, str] = {}
    at: dict[str, dict[str, str]] = {}
    fresh: dict[str, str] = {}
    for name, readers in wanted.items():
        kind = flat.kinds[name]
        line = made_by.get(name)
        if batch_dim.get(name, 0):
            raise AccumulationError(
                "what is computed on the whole batch holds the examples in its leading dim; "
                f"{name} of shape {kind.shape} holds them in dim {batch_dim[name]}: let it lead, "
                "or use microbatches=1"
            )
        new = f"early.{n_early + len(fresh)}"
        if line is not None and line.call.name == "full":  # often the same
            new = alike.setdefault((line.call.key, name in batch_dim), new)
        if new not in fresh.values():
            fresh[name] = new
        if readers is None:
            everywhere[name] = new
        for reader in readers or ():
            at.setdefault(reader, {})[name] = new
    lines = tuple(
        replace(line, inputs=tuple(at[line.name].get(n, n) for n in line.inputs))
        if line.name in at
        else line
        for line in flat.lines
    )
    before = replace(flat, outputs=tuple(fresh)).live()
    makes = tuple(
        Argument(new, flat.kinds[name].shape, flat.kinds[name].dtype, name in batch_dim)
        for name, new in fresh.items()
    )
    kinds = {**flat.kinds, **{new: flat.kinds[name] for name, new in fresh.items()}}
    inputs = (*flat.inputs, *fresh.values())
    rest = replace(flat, inputs=inputs, lines=lines, kinds=kinds).renamed(everywhere).live()
    return rest, Early(before, makes)


def number_examples(flat: Flat, n_early: int, sizes: Collection[int]) -> tuple[Flat, Early]:
    """New arguments with which a microbatch knows its place in the batch.

    Args:
        flat: The step.
        n_early: How many arguments are computed early already.
        sizes: Of dims that hold the examples; one argument is made for each.
    """
    lines, makes = [], []
    for k, size in enumerate(sizes):
        call = Call(aten.arange.default, (size,), {"dtype": torch.int64})
        lines.append(Line(f"arange.{k}", call, (), (f"arange.{k}",), FORWARD))
        makes.append(Argument(f"early.{n_early + k}", (size,), torch.int64, True))
    kinds = {a.name: Kind(a.shape, a.dtype) for a in makes}
    rest = replace(flat, inputs=(*flat.inputs, *kinds), kinds={**flat.kinds, **kinds})
    outputs = tuple(line.outputs[0] for line in lines)
    return rest, Early(Flat((), tuple(lines), {}, {}, outputs), tuple(makes))


def cut(
    flat: Flat,
    batch_dim: Mapping[str, int],
    parts: Sequence[str],
    microbatches: int,
    positions: Mapping[int, str],
) -> tuple[Flat, list[str]]:
    """The program of one microbatch.

    Args:
        flat: The program of the whole batch.
        batch_dim: Where values hold examples, if they do.
        parts: Values that apply needs whole.
        microbatches: How many parts the batch is cut into.
        positions: By size, the input that numbers the slices of a dim that holds the examples.

    Returns:
        The program, and the values that sum up to `parts`.
    """
    kinds = dict(flat.kinds)
    for name, dim in batch_dim.items():
        if name in kinds:
            shape = list(kinds[name].shape)
            shape[dim] //= microbatches
            kinds[name] = Kind(tuple(shape), kinds[name].dtype)
    phase_of = {name: line.phase for line in flat.lines for name in line.outputs}
    put: list[Line] = []
    whole: dict[str, str] = {}
    totals: list[str] = []
    for part in parts:
        dim = batch_dim[part]
        position = positions[flat.kinds[part].shape[dim]]
        phase = phase_of.get(part, FORWARD)
        lines = _put_together(part, flat.kinds[part], kinds[part], dim, position, phase)
        for line, kind in lines:
            kinds[line.outputs[0]] = kind
            put.append(line)
            whole[part] = line.outputs[0]
        totals.append(f"total.{part}")
    cut_lines = []
    for line in flat.lines:
        if line.phase == APPLY:
            line = replace(line, inputs=tuple(whole.get(n, n) for n in line.inputs))
        elif not batch_dim.keys().isdisjoint((*line.inputs, *line.outputs)):
            operands = [kinds[name].shape for name in line.inputs]
            results = [kinds[name].shape for name in line.outputs]
            with planning(line.call.target, line.origin, functools.partial(flat.described, line)):
                line = replace(line, call=call_of_part(line.call, operands, results))
        cut_lines.append(line)
    outputs = tuple(whole.get(name, name) for name in flat.outputs)
    return replace(flat, lines=(*cut_lines, *put), kinds=kinds, outputs=outputs), totals


def _put_together(
    part: str, kind: Kind, local: Kind, dim: int, positions: str, phase: int
) -> list[tuple[Line, Kind]]:
    """Lines that put a part at its place among zeros; of booleans the sum is turned back."""
    is_bool = kind.dtype == torch.bool
    wide = Kind(kind.shape, torch.uint8) if is_bool else kind
    made: list[tuple[Line, Kind]] = []

    def add(what: str, call: Call, inputs: Sequence[str], kind: Kind, phase: int) -> str:
        name = f"{what}.{part}"
        made.append((Line(name, call, tuple(inputs), (name,), phase), kind))
        return name

    zeros = add("zeros", full(wide.shape, 0, wide.dtype), (), wide, phase)
    if is_bool:
        shape = tuple(local.shape)
        call = Call(aten._to_copy.default, (Operand(0),), {"dtype": torch.uint8})
        part_name = add("number", call, (part,), Kind(shape, torch.uint8), phase)
    else:
        part_name = part
    call = Call(aten.index_add.default, (Operand(0), dim, Operand(1), Operand(2)), {})
    total = add("total", call, (zeros, positions, part_name), wide, phase)
    if is_bool:
        add("whole", Call(aten.ne.Scalar, (Operand(0), 0), {}), (total,), kind, APPLY)
    return made
