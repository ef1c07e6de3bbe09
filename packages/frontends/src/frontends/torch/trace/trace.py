"""From a PyTorch training step to a `Step`: trace, name everything, cut into microbatches.

The step is traced once, on the whole batch: forward, `backward()` and the optimizer's update. As
in `frontends.jax.trace.trace`, a microbatch's program is cut from it and keeps its constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from frontends.errors import AccumulationError, BatchError
from frontends.step.step import Accumulation, Step, accumulate, fingerprint
from frontends.torch.base.calls import Call
from frontends.torch.base.host import Number
from frontends.torch.base.origins import Origin
from frontends.torch.base.supposed import Answers
from frontends.torch.base.trees import Tree
from frontends.torch.capture.arguments import Argument
from frontends.torch.capture.capture import Captured, Returned, capture
from frontends.torch.rules.rules import Rules
from frontends.torch.trace.microbatch import Early, compute_early, cut, number_examples
from frontends.torch.trace.program import Program

Tensor = torch.Tensor


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in PyTorch."""

    step: Step
    calls: dict[str, Call]
    """By operator name; an identity has none. Operands are the operator's inputs."""

    origins: dict[str, Origin]
    """By operator name: where in the user's code it was called, where that is known."""

    constants: Mapping[str, Tensor]
    """Tensors that the step has from elsewhere, by value name."""

    arguments: tuple[Argument, ...]
    """State, what is given at each call, and after them what is computed early."""

    early: tuple[Early, ...]
    """What is computed on the whole batch before the first microbatch, in this order."""

    results: tuple[Any, ...]
    """For each leaf of what the step returns, and then of what it leaves elsewhere, a `Returned`, a
    `Number`, or the constant that it always is."""

    out_tree: Tree
    numbers: Mapping[str, Number]
    """Arguments that Python computes from numbers that are given."""

    def with_copies(self, original: Mapping[str, str]) -> Trace:
        """The same where operators have copies, which call what the original ones do."""
        calls = {copy: self.calls[name] for copy, name in original.items() if name in self.calls}
        origins = {c: self.origins[name] for c, name in original.items() if name in self.origins}
        return replace(self, calls={**self.calls, **calls}, origins={**self.origins, **origins})

    def complete(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All arguments by name, from those that are not computed early; draws random numbers."""
        found = dict(values)
        for early in self.early:
            made = early.program.run(found)
            found.update(zip((a.name for a in early.makes), made, strict=True))
        return found

    def draw_before(self, values: Mapping[str, Tensor], number: int) -> None:
        """Draw the random numbers that a step on one device draws before an operator.

        Args:
            values: Of arguments that are not computed early.
            number: Of the operator's origin.
        """
        found = dict(values)
        for early in self.early:
            made = early.program.run_before(found, number)
            names = zip(early.program.outputs, early.makes, strict=True)
            found.update((a.name, made[name]) for name, a in names if name in made)

    def runs_like(self, other: Trace) -> bool:
        """Whether what runs one runs the other: they differ in what Python does with results."""
        return (
            self.step.fingerprint == other.step.fingerprint
            and self.arguments == other.arguments
            and _returned(self.results) == _returned(other.results)
            and self.calls == other.calls
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

    def compute(self, numbers: Mapping[str, float | int]) -> dict[str, Tensor]:
        """The arguments that are numbers, by name, from those that are given."""
        found: dict[str, Tensor] = {}
        for argument in self.arguments:
            if argument.name in self.numbers:
                value = self.numbers[argument.name].of(numbers)
            elif argument.name in numbers:
                value = numbers[argument.name]
            else:
                continue
            found[argument.name] = torch.tensor(value, dtype=argument.dtype)
        return found

    def values(
        self, results: Mapping[str, Tensor], numbers: Mapping[str, float | int]
    ) -> list[Any]:
        """What the step returns and leaves, leaf by leaf, from its values by name."""
        found: list[Any] = []
        for leaf in self.results:
            if isinstance(leaf, Number):
                found.append(leaf.of(numbers))
            elif isinstance(leaf, Returned):
                value = results[leaf.name]
                found.append(value.item() if leaf.is_number else value)
            else:
                found.append(leaf)
        return found

    def unflatten(
        self, results: Mapping[str, Tensor], numbers: Mapping[str, float | int] | None = None
    ) -> Any:
        """What the step returns to the user, from its values by name."""
        return self.out_tree.fill(iter(self.values(results, numbers or {})))


def _returned(results: Sequence[Any]) -> list[str]:
    return [leaf.name for leaf in results if isinstance(leaf, Returned)]


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Capture:
    """A step, traced once, from which a `Trace` for any number of microbatches can be made.

    Args:
        step: From a model, its optimizer and a batch to anything; calls `backward()` and the
            optimizer's `step()`. `training_step` makes one of a loss.
        model: Any module; it may be on the meta device.
        optimizer: Of the model's parameters.
        batch: A tree with tensors and numbers as those of every step will be.
        answers: What Python is told of numbers that the step computes; by default a guess.

    Raises:
        BatchError: The batch is empty.
        UnsupportedStepError: The step cannot be written as one program; the message says why.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Any,
        answers: Answers | None = None,
    ) -> None:
        self._captured: Captured = capture(step, model, optimizer, batch, answers)
        self._flat = self._captured.flat
        self._arguments = list(self._captured.arguments)
        self._early: list[Early] = []
        self._rules = {"time": Rules(masked=False), "space": Rules(masked=True)}
        self.captured, self.state = self._captured, self._captured.state
        if self._captured.draws:
            self._compute_early(dict.fromkeys(self._captured.draws), {})

    @property
    def dtypes(self) -> set[str]:
        """Of all values of the step, by their names."""
        kinds = self._captured.flat.kinds.values()
        return {str(kind.dtype).removeprefix("torch.") for kind in kinds}

    def at(self, microbatches: int) -> Trace:
        """The step in so many microbatches.

        Raises:
            BatchError: The batch cannot be cut into so many parts.
            AccumulationError: The step is not a sum over its examples.
        """
        if microbatches == 1:
            return self._trace(self._program(1, "space"), 1, None)
        _check_divisible(self._arguments, microbatches)
        saved = self._flat, list(self._arguments), list(self._early)
        try:
            return self._cut(microbatches)
        finally:
            self._flat, self._arguments, self._early = saved

    def _cut(self, microbatches: int) -> Trace:
        while True:
            full = self._program(1, "time")
            try:
                found = accumulate(
                    full.graph, microbatches, equal=full.equal, zeros=full.zeros, free=self._free()
                )
            except AccumulationError as error:
                if error.operator not in full.origins:
                    raise
                raise error.written(str(full.origins[error.operator])) from None
            if not found.early:
                break
            self._compute_early(found.early, found.batch_dim)
        parts = [name for name in found.parts if name in self._flat.kinds]
        sizes = {self._flat.kinds[name].shape[found.batch_dim[name]] for name in parts}
        positions = {}
        if sizes:
            self._flat, early = number_examples(self._flat, self._n_early(), sorted(sizes))
            self._add_early(early)
            positions = {a.shape[0]: a.name for a in early.makes}
            found.batch_dim.update(dict.fromkeys(positions.values(), 0))
        self._flat, totals = cut(self._flat, found.batch_dim, parts, microbatches, positions)
        found.sums.update(totals)
        return self._trace(self._program(microbatches, "space"), microbatches, found)

    def _program(self, microbatches: int, over: Literal["time", "space"]) -> Program:
        """With rules of what can be cut, into microbatches or over devices."""
        n_updates = len(self._captured.updates)
        return Program(
            self._flat,
            self._arguments,
            list(zip(self._flat.outputs[:n_updates], self._captured.updates, strict=True)),
            self._flat.outputs[n_updates:],
            microbatches,
            self._rules[over],
        )

    def _trace(self, program: Program, microbatches: int, found: Accumulation | None) -> Trace:
        graph, summed = (program.graph, ()) if found is None else found.arrange(program.graph)
        names = iter(program.results)
        return Trace(
            Step(graph, microbatches, summed, fingerprint(graph, microbatches)),
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
        )

    def _free(self) -> set[str]:
        """What early computation may read: no weights, nor anything that is as large as they."""
        found = set(self._flat.constants)
        for argument in self._arguments:
            is_small = argument.name.startswith(("early.", "batch", "optimizer.param_groups"))
            is_small |= argument.name.startswith(("outside", "number."))
            if is_small or not argument.dtype.is_floating_point:
                found.add(argument.name)
        return found

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


def _check_divisible(arguments: Sequence[Argument], microbatches: int) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [argument for argument in arguments if argument.is_batch]
    if not batch:
        raise BatchError("microbatches cut the batch, but it holds no tensor with a dim")
    for argument in batch:
        if argument.shape[0] % microbatches:
            raise BatchError(
                "the batch's leading dim must be a multiple of microbatches; got "
                f"{argument.name} of shape {argument.shape} and microbatches={microbatches}"
            )
