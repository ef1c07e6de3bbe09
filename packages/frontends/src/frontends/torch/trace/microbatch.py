"""Derives the program of a microbatch, and that of early values, from the program of a batch.

As in `frontends.jax.trace.microbatch`, one trace is enough, since a microbatch is a shard in time.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch

from frontends.step.step import APPLY, FORWARD
from frontends.torch.base.blame import planning
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import FlatProgram, Line, Shape, TensorType, full
from frontends.torch.capture.arguments import Argument
from frontends.torch.rules.rules import call_of_part

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Early:
    """A computation that runs once a step, on the whole batch, before the first microbatch."""

    program: FlatProgram
    """Reads arguments; its outputs are the values of `makes`. Draws are in the step's order."""

    makes: tuple[Argument, ...]
    """The new arguments of the step that it computes."""

    is_first_pass: bool = False
    """Whether it reads weights and runs on the devices, as `frontends.step.two_passes` says."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the arguments that it reads."""
        read = {name for line in self.program.lines for name in line.inputs}
        read.update(self.program.outputs)
        return tuple(name for name in self.program.inputs if name in read)


def compute_early(
    flat: FlatProgram,
    n_early: int,
    wanted: Mapping[str, Collection[str] | None],
    batch_dim: Mapping[str, int],
    *,
    is_first_pass: bool = False,
) -> tuple[FlatProgram, Early]:
    """Turn values into arguments that are computed before the first microbatch.

    Args:
        flat: The step.
        n_early: How many such arguments it has already.
        wanted: By value, the lines that are to read the argument instead; None for all lines.
        batch_dim: By value, the dim that holds the examples, if one does.
        is_first_pass: See `Early`.

    Returns:
        The step that reads the new arguments, and the computation of these.
    """
    made_by = {name: line for line in flat.lines for name in line.outputs}
    alike: dict[object, str] = {}
    everywhere: dict[str, str] = {}
    at: dict[str, dict[str, str]] = {}
    fresh: dict[str, str] = {}
    for name, chosen in wanted.items():
        line = made_by.get(name)
        new = f"early.{n_early + len(fresh)}"
        if line is not None and line.call.name == "full":  # many of them are equal
            new = alike.setdefault((line.call.key, batch_dim.get(name)), new)
        if new not in fresh.values():
            fresh[name] = new
        instead = f"back.{new}" if batch_dim.get(name, 0) else new
        if chosen is None:
            everywhere[name] = instead
        for reader in chosen or ():
            at.setdefault(reader, {})[name] = instead
    rest = replace(
        flat,
        inputs=(*flat.inputs, *fresh.values()),
        lines=tuple(
            replace(line, inputs=tuple(at[line.name].get(n, n) for n in line.inputs))
            if line.name in at
            else line
            for line in flat.lines
        ),
    ).renamed(everywhere)
    kinds, outputs, makes = dict(flat.kinds), [], []
    before, after = list(flat.lines), []
    for name, new in fresh.items():
        kind, dim = kinds[name], batch_dim.get(name, 0)
        if dim:  # a microbatch is cut from the leading dim
            kinds[f"back.{new}"] = kind
            kind = TensorType(_exchanged(kind.shape, dim), kind.dtype)
            kinds[f"front.{name}"] = kind
            readers = (line.phase for line in rest.lines if f"back.{new}" in line.inputs)
            phase = min(readers, default=FORWARD)
            before.append(_exchange(name, f"front.{name}", dim, FORWARD, made_by.get(name)))
            after.append(_exchange(new, f"back.{new}", dim, phase, made_by.get(name)))
        kinds[new] = kind
        outputs.append(f"front.{name}" if dim else name)
        makes.append(Argument(new, kind.shape, kind.dtype, name in batch_dim))
    rest = replace(rest, lines=(*after, *rest.lines), kinds=kinds).live()
    program = replace(flat, lines=tuple(before), kinds=kinds, outputs=tuple(outputs)).live()
    return rest, Early(program, tuple(makes), is_first_pass)


def _exchanged(shape: Shape, dim: int) -> Shape:
    return (shape[dim], *shape[1:dim], shape[0], *shape[dim + 1 :])


def _exchange(source: str, result: str, dim: int, phase: int, like: Line | None) -> Line:
    """Return a line that exchanges the leading dim and another one."""
    call = Call(aten.transpose.int, (Operand(0), 0, dim), {})
    origin = None if like is None else like.origin
    return Line(result, call, (source,), (result,), phase, origin)


def number_examples(
    flat: FlatProgram, n_early: int, sizes: Collection[int]
) -> tuple[FlatProgram, Early]:
    """Add arguments that tell a microbatch its examples' indices in the batch.

    Args:
        flat: The step.
        n_early: How many early arguments it has already.
        sizes: The sizes of dims that hold the examples; each gets one argument.

    Returns:
        The step with the new arguments, and the computation of these.
    """
    lines, makes = [], []
    for k, size in enumerate(sizes):
        call = Call(aten.arange.default, (size,), {"dtype": torch.int64})
        lines.append(Line(f"arange.{k}", call, (), (f"arange.{k}",), FORWARD))
        makes.append(Argument(f"early.{n_early + k}", (size,), torch.int64, True))
    kinds = {a.name: TensorType(a.shape, a.dtype) for a in makes}
    rest = replace(flat, inputs=(*flat.inputs, *kinds), kinds={**flat.kinds, **kinds})
    outputs = tuple(line.outputs[0] for line in lines)
    return rest, Early(FlatProgram((), tuple(lines), {}, {}, outputs), tuple(makes))


def cut(
    flat: FlatProgram,
    batch_dim: Mapping[str, int],
    parts: Sequence[str],
    microbatches: int,
    positions: Mapping[int, str],
    of_parts: Set[str],
    late: Set[str],
    scales: Mapping[str, Mapping[str, float]],
    averaged: Sequence[str],
) -> tuple[FlatProgram, list[str]]:
    """Return the program of one microbatch.

    Args:
        flat: The program of the whole batch.
        batch_dim: By value, the dim that holds the examples, if one does.
        parts: Values with examples that apply needs for the whole batch.
        microbatches: The number of microbatches.
        positions: By size of a dim that holds the examples, the input that numbers its slices.
        of_parts: Values of forward that apply computes instead, from parts.
        late: All values of forward and backward that apply computes instead.
        scales: By line, the values that it reads times a factor.
        averaged: Statistics of microbatches of which apply reads the mean.

    Returns:
        The program, and the values whose sums over the microbatches are `parts` and `averaged`.
    """
    kinds = dict(flat.kinds)
    for name, dim in batch_dim.items():
        if name in kinds:
            shape = list(kinds[name].shape)
            shape[dim] //= microbatches
            kinds[name] = TensorType(tuple(shape), kinds[name].dtype)
    phase_of = {name: line.phase for line in flat.lines for name in line.outputs}
    total_lines: list[Line] = []
    whole: dict[str, str] = {}
    totals: list[str] = []
    for part in parts:
        dim = batch_dim[part]
        position = positions[flat.kinds[part].shape[dim]]
        phase = phase_of.get(part, FORWARD)
        lines = _put_together(part, flat.kinds[part], kinds[part], dim, position, phase)
        for line, kind in lines:
            kinds[line.outputs[0]] = kind
            total_lines.append(line)
            whole[part] = line.outputs[0]
        totals.append(f"total.{part}")
    cut_lines: list[Line] = []
    shares = {name: f"share.{name}" for name in averaged}
    whole.update(shares)
    totals += shares.values()
    scaled: dict[tuple[str, float], str] = {}

    def times(name: str, factor: float, result: str) -> None:
        kinds[result] = kinds[name]
        number = factor if kinds[name].dtype.is_floating_point else int(factor)
        call = Call(aten.mul.Tensor, (Operand(0), number), {})
        cut_lines.append(Line(result, call, (name,), (result,), phase_of[name]))

    for line in flat.lines:
        instead: dict[str, str] = {}
        for name, factor in scales.get(line.name, {}).items():
            if (name, factor) not in scaled:
                scaled[name, factor] = f"scaled.{len(scaled)}.{name}"
                times(name, factor, scaled[name, factor])
            instead[name] = scaled[name, factor]
        if line.phase != APPLY and not late.isdisjoint(line.outputs):
            instead |= shares
        if instead:
            line = replace(line, inputs=tuple(instead.get(name, name) for name in line.inputs))
        if line.phase == APPLY or not of_parts.isdisjoint(line.outputs):
            line = replace(line, phase=APPLY, inputs=tuple(whole.get(n, n) for n in line.inputs))
        elif not batch_dim.keys().isdisjoint((*line.inputs, *line.outputs)):
            operands = [kinds[name].shape for name in line.inputs]
            results = [kinds[name].shape for name in line.outputs]
            with planning(line.call.target, line.origin, functools.partial(flat.described, line)):
                line = replace(line, call=call_of_part(line.call, operands, results))
        cut_lines.append(line)
        for name in line.outputs:
            if name in shares:
                times(name, 1 / microbatches, shares[name])
    outputs = tuple(whole.get(name, name) for name in flat.outputs)
    if of_parts:  # what is put together is read by lines that were before it
        compute = [line for line in cut_lines if line.phase != APPLY]
        apply = [line for line in cut_lines if line.phase == APPLY]
        ordered = (*compute, *total_lines, *apply)
    else:
        ordered = (*cut_lines, *total_lines)
    return replace(flat, lines=ordered, kinds=kinds, outputs=outputs), totals


def _put_together(
    part: str, kind: TensorType, local: TensorType, dim: int, positions: str, phase: int
) -> list[tuple[Line, TensorType]]:
    """Return lines that place a part at its position among zeros, to be summed over microbatches.

    Booleans are summed as numbers; apply turns the sum into booleans again.
    """
    is_bool = kind.dtype == torch.bool
    wide = TensorType(kind.shape, torch.uint8) if is_bool else kind
    lines: list[tuple[Line, TensorType]] = []

    def add(what: str, call: Call, inputs: Sequence[str], kind: TensorType, phase: int) -> str:
        name = f"{what}.{part}"
        lines.append((Line(name, call, tuple(inputs), (name,), phase), kind))
        return name

    zeros = add("zeros", full(wide.shape, 0, wide.dtype), (), wide, phase)
    if is_bool:
        shape = tuple(local.shape)
        call = Call(aten._to_copy.default, (Operand(0),), {"dtype": torch.uint8})
        part_name = add("number", call, (part,), TensorType(shape, torch.uint8), phase)
    else:
        part_name = part
    call = Call(aten.index_add.default, (Operand(0), dim, Operand(1), Operand(2)), {})
    total = add("total", call, (zeros, positions, part_name), wide, phase)
    if is_bool:
        add("whole", Call(aten.ne.Scalar, (Operand(0), 0), {}), (total,), kind, APPLY)
    return lines
