"""Turns a PyTorch step into a `TrainingStep`: traces it, and derives a microbatch's program.

The step is traced once, on the whole batch: forward, `backward()` and the optimizer's update. As
in `frontends.jax.trace.trace`, a microbatch's program is derived from that and keeps its constants.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from autoshard import Operator

from frontends.base.batch_axes import BatchAxes, BatchLeafShape, axes_of
from frontends.base.present import present
from frontends.errors import AccumulationError, BatchError
from frontends.step.accumulate import Accumulation, accumulate, step_of
from frontends.step.interleaved import reordering_of
from frontends.step.padding import Shape, padding_of
from frontends.step.step import FORWARD, TrainingStep
from frontends.step.two_passes import made_by_first_pass
from frontends.torch.base.calls import Call
from frontends.torch.base.checksums import checksum_of
from frontends.torch.base.flat import FlatProgram, dtype_name
from frontends.torch.base.host import Number
from frontends.torch.base.origins import Origin
from frontends.torch.base.supposed import Answers
from frontends.torch.base.trees import Tree, flatten
from frontends.torch.capture.arguments import Argument, named
from frontends.torch.capture.capture import capture
from frontends.torch.capture.captured import Captured, Returned
from frontends.torch.rules.rules import Rules
from frontends.torch.trace.all_parts import without_parts
from frontends.torch.trace.microbatch import Early, compute_early, cut, number_examples
from frontends.torch.trace.pad import padded, runs_on
from frontends.torch.trace.parts import BatchPart, part_of
from frontends.torch.trace.phased_graph import PhasedGraph
from frontends.torch.trace.reorder import joins_of, reordered
from frontends.torch.trace.sort import sorted_by_example

Tensor = torch.Tensor


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in PyTorch."""

    step: TrainingStep
    calls: dict[str, Call]
    """By operator name, the call; an identity has none. Operands are the operator's inputs."""

    origins: dict[str, Origin]
    """By operator name, where in the user's code it is called, if that is known."""

    constants: Mapping[str, Tensor]
    """Values that are neither arguments nor computed, by name."""

    arguments: tuple[Argument, ...]
    """State, then what each call passes in, then early arguments."""

    early: tuple[Early, ...]
    """Computations on the whole batch before the first microbatch, in this order."""

    results: tuple[Any, ...]
    """For each leaf of what the step returns, and then of what it changes elsewhere, a `Returned`,
    a `Number`, or the value itself if it is constant."""

    out_tree: Tree
    """The structure of what the step returns."""

    numbers: Mapping[str, Number]
    """Arguments that Python computes from numbers that each call passes in."""

    rows: Mapping[str, Sequence[int]]
    """By argument that is padded: the rows that all microbatches have of it."""

    def with_copies(self, original: Mapping[str, str]) -> Trace:
        """Return the trace for a graph with copies of operators, whose calls are the originals'.

        Args:
            original: By copy, the operator that it is a copy of.
        """
        calls = {copy: self.calls[name] for copy, name in original.items() if name in self.calls}
        origins = {c: self.origins[name] for c, name in original.items() if name in self.origins}
        return replace(self, calls={**self.calls, **calls}, origins={**self.origins, **origins})

    @property
    def first_pass(self) -> Early | None:
        """What a first pass computes on the devices, for a step that has two."""
        return next((early for early in self.early if early.is_first_pass), None)

    @property
    def read_early(self) -> frozenset[str]:
        """The arguments that are read before any pass."""
        return frozenset(n for each in self.early if not each.is_first_pass for n in each.reads)

    def complete(
        self,
        values: Mapping[str, Tensor],
        first_pass: Callable[[Mapping[str, Tensor]], Sequence[Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        """Compute the early arguments, which draws random numbers; return all arguments by name.

        Args:
            values: The arguments that are not early, by name.
            first_pass: Computes what `self.first_pass` makes, from arguments by name.
        """
        arguments = dict(values)
        for early in self.early:
            if early.is_first_pass and first_pass is not None:
                outputs = first_pass(arguments)
            else:
                outputs = early.program.run(arguments)
            arguments.update(zip((a.name for a in early.makes), outputs, strict=True))
        return arguments

    def draw_before(self, values: Mapping[str, Tensor], number: int) -> None:
        """Draw the random numbers that a step on one device draws before an operator.

        Args:
            values: The arguments that are not early, by name.
            number: The number of the operator's origin.
        """
        arguments = dict(values)
        for early in self.early:
            if early.is_first_pass:  # it draws nothing
                continue
            outputs = early.program.run_before(arguments, number)
            names = zip(early.program.outputs, early.makes, strict=True)
            arguments.update((a.name, outputs[name]) for name, a in names if name in outputs)

    def runs_like(self, other: Trace) -> bool:
        """Return whether a runtime of one can run the other.

        The two may differ only in what Python does with the results.
        """
        return (
            self.step.fingerprint == other.step.fingerprint
            and self.arguments == other.arguments
            and _returned(self.results) == _returned(other.results)
            and self.calls == other.calls
            and self.rows == other.rows
            and len(self.early) == len(other.early)
            and all(
                a.program.lines == b.program.lines
                for a, b in zip(self.early, other.early, strict=True)
            )
            and all(
                _are_equal(a.program.constants, b.program.constants)
                for a, b in zip(self.early, other.early, strict=True)
            )
            and _are_equal(self.constants, other.constants)
        )

    @functools.cached_property
    def checksums(self) -> dict[str, int]:
        """Checksums of its operators, constants and numbers by name, to compare processes."""
        parts: list[tuple[str, Any]] = [*self.calls.items(), *self.constants.items()]
        parts += self.numbers.items()
        for early in self.early:
            parts += [(line.name, line.call) for line in early.program.lines]
            parts += early.program.constants.items()
        return {name: checksum_of(part) for name, part in parts}

    def line_of(self, name: str) -> str | None:
        """Where in the user's code an operator or a number is from, if that is known."""
        origin = self.origins.get(name)
        if origin is None and name in self.numbers:
            origin = self.numbers[name].origin
        return None if origin is None else str(origin)

    def compute(self, numbers: Mapping[str, float | int]) -> dict[str, Tensor]:
        """Return the arguments that are numbers as tensors, by name.

        Args:
            numbers: The numbers that the call passes in, by name.
        """
        tensors: dict[str, Tensor] = {}
        for argument in self.arguments:
            if argument.name in self.numbers:
                value = self.numbers[argument.name].of(numbers)
            elif argument.name in numbers:
                value = numbers[argument.name]
            else:
                continue
            tensors[argument.name] = torch.tensor(value, dtype=argument.dtype)
        return tensors

    def values(
        self, results: Mapping[str, Tensor], numbers: Mapping[str, float | int]
    ) -> list[Any]:
        """Return the values of `results`, leaf by leaf.

        Args:
            results: The program's results, by name.
            numbers: The numbers that the call passes in, by name.
        """
        leaves: list[Any] = []
        for leaf in self.results:
            if isinstance(leaf, Number):
                leaves.append(leaf.of(numbers))
            elif isinstance(leaf, Returned):
                value = results[leaf.name]
                leaves.append(value.item() if leaf.is_number else value)
            else:
                leaves.append(leaf)
        return leaves

    def unflatten(
        self, results: Mapping[str, Tensor], numbers: Mapping[str, float | int] | None = None
    ) -> Any:
        """Return what the step returns to the user.

        Args:
            results: The program's results, by name.
            numbers: The numbers that the call passes in, by name.
        """
        return self.out_tree.fill(iter(self.values(results, numbers or {})))


def _returned(results: Sequence[Any]) -> list[str]:
    return [leaf.name for leaf in results if isinstance(leaf, Returned)]


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Capture:
    """A step, traced once, from which a `Trace` for any number of microbatches can be made.

    Args:
        step: A function of model, optimizer and batch that calls `backward()` and the optimizer's
            `step()`. `training_step` makes one from a loss.
        model: The module; it may be on the meta device.
        optimizer: An optimizer of the model's parameters.
        batch: A batch like those of all later calls: a tree of tensors and numbers.
        answers: Gives answers to conditions on numbers that the step computes; by default guesses.
        batch_axes: Which dims of the batch hold the examples, as in `axes_of`.
        follows: Whether it follows a step, and has nothing to do with gradients.
        statistics: Whether microbatches may use statistics of their own examples.

    Raises:
        BatchError: The batch is empty, or a dim that `batch_axes` names does not exist.
        UnsupportedStepError: The step cannot be written as one program; the message says why.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Any,
        answers: Answers | None = None,
        batch_axes: BatchAxes = 0,
        *,
        follows: bool = False,
        statistics: bool = False,
    ) -> None:
        self._statistics = statistics
        axes = _axes_of(batch_axes, batch)
        self._captured: Captured = capture(step, model, optimizer, batch, answers, follows=follows)
        self._flat = self._captured.flat
        self._arguments = list(self._captured.arguments)
        self._early: list[Early] = []
        self._rules = {"time": Rules(masked=False), "space": Rules(masked=True)}
        self.captured, self.state = self._captured, self._captured.state
        self._lead_with_examples(axes)
        self._leave_out_parts()
        self._put_examples_first()
        if self._captured.draws:
            self._compute_early(dict.fromkeys(self._captured.draws), {})

    def _lead_with_examples(self, axes: Mapping[str, int | None]) -> None:
        """Read leaves of the batch with examples in another dim as such with it in front."""
        self._arguments = [
            replace(a, is_batch=False) if axes.get(a.name, 0) != 0 else a for a in self._arguments
        ]
        self.axes = {a.name: axis for a in self._arguments if (axis := axes.get(a.name))}
        """By tensor of the batch with examples in another dim than the leading one: which."""

        if self.axes:
            self._compute_early(dict.fromkeys(self.axes), self.axes)

    def _leave_out_parts(self) -> None:
        """Compute at once what a step computes part by part of its batch, and adds up."""
        names = {argument.name for argument in self._arguments if argument.is_batch}
        outputs = self._flat.outputs  # all draws stay, as later ones depend on them
        flat = replace(self._flat, outputs=(*outputs, *self._captured.draws))
        weights = set(flat.inputs) - self._free() - names
        part = part_of(flat, names, self._captured.draws, weights)
        if part is None:
            return
        alone = self._alone(part)
        alone._put_examples_first()
        before, part = part.flat, part.reordered(alone._flat)
        program = alone._program(1, "time")
        least = next(k for k in range(2, part.rows + 1) if part.rows % k == 0)
        free = self._free() | part.draws.keys() | part.pieces.keys()
        try:
            found = accumulate(
                program.graph, least, equal=program.equal, zeros=program.zeros, free=free
            )
        except AccumulationError:
            return
        n_elements = {name: math.prod(kind.shape) for name, kind in part.flat.kinds.items()}
        joined = {of for of, _ in part.joins.values()}
        early = [name for name in found.early if name not in part.draws]
        totals = {of for of, _ in part.sums.values()} - found.sums
        others = {name for name in early if name not in found.batch_dim} | totals
        numbers = {name for name in others if n_elements[name] == 1}
        if not joined.issuperset(found.parts) or others != numbers:
            return
        if not _are_equally_made(early, before, part.flat):  # the parts have them in another order
            return
        each = bool(numbers) or any(n_elements[name] == 1 for name in joined)
        whole = without_parts(flat, part, found.batch_dim, early, each=each)
        if whole is not None:
            self._flat = replace(whole, outputs=whole.outputs[: len(outputs)])

    def _alone(self, part: BatchPart) -> Capture:
        """A part of the batch that the step cuts itself, as a step of its own without updates."""
        flat, kinds = part.flat, part.flat.kinds
        given = [(name, True) for name in part.pieces] + [(name, False) for name in part.draws]
        # what the part reads of the whole batch is the same for all parts
        arguments = [replace(a, is_batch=False) for a in self._arguments]
        arguments += [Argument(n, kinds[n].shape, kinds[n].dtype, is_) for n, is_ in given]
        names = tuple(argument.name for argument in arguments)
        return self._as_step(replace(flat, inputs=names), arguments)

    @property
    def batch_sizes(self) -> list[int]:
        """How many slices along the examples each tensor of the batch has."""
        return [argument.shape[0] for argument in self._arguments if argument.is_batch]

    def _put_examples_first(self) -> None:
        """Reorder the values that interleave the examples of a batch, or sort rows of several."""
        examples = math.gcd(*self.batch_sizes)
        if examples < 2:
            return
        outputs = self._flat.outputs  # all draws stay, as later ones depend on them
        self._flat = replace(self._flat, outputs=(*outputs, *self._captured.draws))
        whole = self._program(1, "time")
        how = reordering_of(whole.graph, examples, joins_of(self._flat))
        if how is not None:
            self._flat = reordered(self._flat, how, whole.equal)
            whole = self._program(1, "time")
        while (flat := sorted_by_example(self._flat, whole, examples)) is not self._flat:
            self._flat = flat  # rows that follow from these may be tied to examples now
            whole = self._program(1, "time")
        self._flat = replace(self._flat, outputs=self._flat.outputs[: len(outputs)])

    @property
    def dtypes(self) -> set[str]:
        """The names of the types of all values of the step."""
        kinds = self._captured.flat.kinds.values()
        return {dtype_name(kind.dtype) for kind in kinds}

    def at(self, microbatches: int, padded_to: int = 0) -> Trace:
        """Return the trace for a number of microbatches.

        Args:
            microbatches: The number.
            padded_to: To how many examples each of them is padded; 0 for none.

        Raises:
            BatchError: The batch cannot be divided into this number of parts.
            AccumulationError: The step is not a sum over its examples.
        """
        if microbatches > 1:
            _check_divisible(self._arguments, self.axes, microbatches)
        saved = self._flat, list(self._arguments), list(self._early)
        try:
            accumulation = self._cut(microbatches) if microbatches > 1 else None
            rows = self._pad(microbatches, padded_to)
            program = self._program(microbatches, "space")
            return self._trace(program, microbatches, accumulation, rows)
        finally:
            self._flat, self._arguments, self._early = saved

    def _cut(self, microbatches: int) -> Accumulation:
        while True:
            full = self._program(1, "time")
            try:
                accumulation = accumulate(
                    full.graph,
                    microbatches,
                    equal=full.equal,
                    zeros=full.zeros,
                    free=self._free(),
                    statistics=self._statistics,
                )
            except AccumulationError as error:
                if not self._statistics and self._add_first_pass(full, microbatches):
                    continue
                if error.operator not in full.origins:
                    raise
                raise error.written(str(full.origins[error.operator])) from None
            if not accumulation.early:
                break
            self._compute_early(accumulation.early, accumulation.batch_dim)
        parts = [name for name in accumulation.parts if name in self._flat.kinds]
        sizes = {self._flat.kinds[name].shape[accumulation.batch_dim[name]] for name in parts}
        positions = {}
        if sizes:
            self._flat, early = number_examples(self._flat, self._n_early(), sorted(sizes))
            self._add_early(early)
            positions = {a.shape[0]: a.name for a in early.makes}
            accumulation.batch_dim.update(dict.fromkeys(positions.values(), 0))
        self._flat, totals = cut(
            self._flat,
            accumulation.batch_dim,
            parts,
            microbatches,
            positions,
            accumulation.of_parts,
            accumulation.late,
            accumulation.scales(microbatches),
            accumulation.averaged,
        )
        accumulation.sums.update(totals)
        return accumulation

    def _add_first_pass(self, full: PhasedGraph, microbatches: int) -> bool:
        """Let a first pass compute what compares examples; whether there is such a pass."""
        if any(early.is_first_pass for early in self._early):
            return False
        made = made_by_first_pass(full.graph, microbatches, equal=full.equal, free=self._free())
        if not made:
            return False
        batch_dim = {name: dim for name, dim in made.items() if dim is not None}
        wanted = dict.fromkeys(made)
        self._flat, early = compute_early(
            self._flat, self._n_early(), wanted, batch_dim, is_first_pass=True
        )
        self._add_early(early)
        return True

    def first_pass(self, trace: Trace) -> Capture:
        """The first pass of one of its traces, as a step of its own without updates."""
        early = present(trace.first_pass, "the trace has two passes")
        of_name = {a.name: a for a in trace.arguments}
        program = replace(
            early.program,
            inputs=early.reads,
            lines=tuple(replace(line, phase=FORWARD) for line in early.program.lines),
        )
        return self._as_step(program, [of_name[name] for name in early.reads])

    def _as_step(self, flat: FlatProgram, arguments: Sequence[Argument]) -> Capture:
        """A program that makes something of arguments, as a step of its own without updates."""
        other = copy(self)
        other._statistics, other._early, other.axes = False, [], {}
        other._flat, other._arguments = flat, list(arguments)
        other.captured = other._captured = replace(
            self._captured,
            flat=flat,
            arguments=tuple(arguments),
            updates=(),
            results=tuple(Returned(name, False) for name in flat.outputs),
            draws=(),
            numbers={},
        )
        return other

    def _pad(self, microbatches: int, padded_to: int) -> dict[str, list[int]]:
        """Pad the program of a microbatch; return `Trace.rows`."""
        examples = math.gcd(*self.batch_sizes) // microbatches
        if padded_to in (0, examples):
            return {}
        whole = self._program(microbatches, "time")

        def runs(op: Operator, operands: Sequence[Shape], results: Sequence[Shape]) -> bool:
            return runs_on(self._flat, whole.lines[op.name], operands, results)

        padding = padding_of(whole.graph, examples, padded_to, whole.zeros, runs)
        batch = [a for a in self._arguments if a.is_batch and a.name in padding.dim]
        self._flat = padded(self._flat, [a.name for a in batch], padding)
        return {a.name: padding.rows(a.shape[0], microbatches) for a in batch}

    def _program(self, microbatches: int, over: Literal["time", "space"]) -> PhasedGraph:
        """Return the graph, with rules for microbatches ("time") or for devices ("space")."""
        n_updates = len(self._captured.updates)
        return PhasedGraph(
            self._flat,
            self._arguments,
            list(zip(self._flat.outputs[:n_updates], self._captured.updates, strict=True)),
            self._flat.outputs[n_updates:],
            microbatches,
            self._rules[over],
        )

    def _trace(
        self,
        program: PhasedGraph,
        microbatches: int,
        accumulation: Accumulation | None,
        rows: Mapping[str, Sequence[int]],
    ) -> Trace:
        names = iter(program.results)
        return Trace(
            step_of(program.graph, microbatches, accumulation),
            {name: line.call for name, line in program.lines.items()},
            program.origins,
            self._flat.constants,
            tuple(self._arguments),
            tuple(self._early),
            tuple(
                Returned(next(names), leaf.is_number) if isinstance(leaf, Returned) else leaf
                for leaf in self._captured.results
            ),
            self._captured.out_tree,
            self._captured.numbers,
            rows,
        )

    def _free(self) -> set[str]:
        """Return what early computation may read: no weights, nor anything as large as these."""
        names = set(self._flat.constants)
        for argument in self._arguments:
            is_small = argument.name.startswith(("early.", "batch", "optimizer.param_groups"))
            is_small |= argument.name.startswith(("outside", "number."))
            if is_small or not argument.dtype.is_floating_point:
                names.add(argument.name)
        return names

    def _n_early(self) -> int:
        return sum(len(early.makes) for early in self._early)

    def _compute_early(
        self, wanted: Mapping[str, Sequence[str] | None], batch_dim: Mapping[str, int]
    ) -> None:
        self._flat, early = compute_early(self._flat, self._n_early(), wanted, batch_dim)
        self._add_early(early)

    def _add_early(self, early: Early) -> None:
        self._early.append(early)
        self._arguments += early.makes


def _are_equally_made(names: Collection[str], before: FlatProgram, now: FlatProgram) -> bool:
    """Return whether two programs compute some values by the same lines."""
    lines = {line.name: line for line in before.lines}
    made = replace(now, outputs=tuple(names)).live().lines
    return all(lines.get(line.name) == line for line in made)


def _axes_of(batch_axes: BatchAxes, batch: Any) -> dict[str, int | None]:
    """By tensor of a batch, the dim that holds the examples."""
    leaves, tree = flatten(batch)
    shapes = [
        BatchLeafShape(name, keys, tuple(leaf.shape) if isinstance(leaf, Tensor) else ())
        for (name, leaf), keys in zip(named(leaves), tree.places(), strict=True)
    ]
    axes = axes_of(batch_axes, shapes)
    return {leaf.name: axis for leaf, axis in zip(shapes, axes, strict=True)}


def _check_divisible(
    arguments: Sequence[Argument], axes: Mapping[str, int], microbatches: int
) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [(a, axes.get(a.name, 0)) for a in arguments if a.is_batch or a.name in axes]
    if not batch:
        raise BatchError("microbatches cut the batch, but it holds no tensor with a dim")
    for argument, axis in batch:
        if argument.shape[axis] % microbatches:
            raise BatchError(
                f"the batch's {f'dim {axis}' if axis else 'leading dim'} must be a multiple of "
                f"microbatches; got {argument.name} of shape {argument.shape} and "
                f"microbatches={microbatches}"
            )
