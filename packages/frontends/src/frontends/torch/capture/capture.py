"""Run a user's step once on tensors without values, and keep what it does.

Every value that the step reads is then one of

- *state*: parameters, buffers and what the optimizer keeps, which the step gives new values;
- *input*, handed over at each call: the batch, numbers in it and in `param_groups`, and tensors
  that the step reads from elsewhere, which it may also write (an average of the weights);
- *constant*: a tensor that the step's own Python code makes, as `torch.tensor(3)` does;
- *guard*: whatever else Python code looked at (`guards`). Where a guard has changed, the program is
  another one, and the step is captured again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from frontends.base.no_gc import objects_by_type
from frontends.errors import BatchError, UnsupportedStepError
from frontends.torch.base.compat.marks import tracers_module
from frontends.torch.base.compat.operators import uncompiled
from frontends.torch.base.compat.stand_ins import Alias, current_stand_ins
from frontends.torch.base.compat.traced import Program
from frontends.torch.base.compat.values import SYMBOLS, is_stand_in
from frontends.torch.base.flat import Flat, known_from
from frontends.torch.base.frozen import inside
from frontends.torch.base.host import Number, number_of
from frontends.torch.base.origins import defined
from frontends.torch.base.supposed import Answers, Decisions
from frontends.torch.base.trees import Tree, flatten, removed
from frontends.torch.capture import sequences
from frontends.torch.capture.arguments import (
    Argument,
    State,
    batch_numbers,
    describe,
    is_count,
    named,
)
from frontends.torch.capture.decompositions import DECOMPOSITIONS
from frontends.torch.capture.gradients import Gradients
from frontends.torch.capture.guards import BatchForm, Guards, StateForm, flags
from frontends.torch.capture.instead import followed
from frontends.torch.capture.left import Effect, Left, check_real
from frontends.torch.capture.memoized import Memos
from frontends.torch.capture.outside import check_apart, places_of
from frontends.torch.capture.read import AliasedError, Name, read
from frontends.torch.capture.reads import Reads
from frontends.torch.capture.refusals import explained
from frontends.torch.capture.told import Told

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of what the step returns that is a value of the step."""

    name: str
    is_number: bool
    """Whether the user gets one of Python's numbers, as from `item()`."""


@dataclass(frozen=True)
class Leavings:
    """What a step leaves elsewhere than in its state and in what it returns."""

    n_values: int
    """How many values the effects are made of: the first results after those returned."""

    effects: tuple[Effect, ...]
    gradients: tuple[str, ...]
    """Parameters whose gradients it leaves: the results that follow."""

    cleared: tuple[str, ...]
    """Parameters whose gradients are gone afterwards."""

    emptied: tuple[str, ...]
    """Those that have none."""

    flags: tuple[tuple[Tensor, bool], ...]
    """Parameters that get gradients from then on, or get none any more."""

    told: tuple[Told, ...]
    """What is printed and logged."""

    removed: tuple[tuple[tuple[Any, ...], Any], ...]
    """What the step takes out of its batch: where, and under which key."""

    written: tuple[str, ...]
    """Arguments of the user's that it writes in place: the last results."""

    aliases: Mapping[int, Alias]
    """Of what is returned and of values of effects, in this order, those that share memory with the
    state or the batch, as where a parameter is returned."""


@dataclass(frozen=True)
class Captured:
    """A step on the whole batch."""

    flat: Flat
    """Its outputs are the new values of `updates`, and then the results."""

    arguments: tuple[Argument, ...]
    """One for each input of `flat`."""

    state: State
    updates: tuple[str, ...]
    """The arguments that the step gives new values."""

    results: tuple[Any, ...]
    """For each leaf of what the step returns, and of what it leaves, a `Returned`, a `Number`, or
    the constant that it always is."""

    out_tree: Tree
    draws: tuple[str, ...]
    """Random values; equal draws are there once."""

    numbers: Mapping[str, Number]
    """Arguments that Python computes at each call."""

    left: Leavings
    guards: Guards
    decisions: Decisions
    """By numbers that the program makes; they are its last results."""

    only_once: str | None
    """Why it has to be captured again at every call, if it has to."""


def training_step(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The usual step of a loss: `loss_fn(model, batch)`, its gradients, and an update."""

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        _check_loss(loss, loss_fn)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _check_loss(loss: Any, loss_fn: Callable[..., Any]) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    said = type(loss).__name__
    if isinstance(loss, Tensor):
        follows = "" if loss.requires_grad else " that follows from no parameter"
        said = f"a tensor of shape {list(loss.shape)}{follows}"
    raise UnsupportedStepError(
        "a loss is a tensor of one number that follows from parameters; "
        f"{defined(loss_fn)} returns {said}"
    )


def capture(
    step: Callable[..., Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    answers: Answers | None = None,
) -> Captured:
    """Trace `step(model, optimizer, batch)`, which changes nothing of the user's.

    Args:
        step: Of model, optimizer and batch.
        model: Any module.
        optimizer: Of its parameters.
        batch: What the step is called with.
        answers: What Python is told of numbers that the step computes; by default a guess.

    Raises:
        BatchError: The batch is empty, or holds what cannot be handed over at each call.
        UnsupportedStepError: The step cannot be written as one program; the message says why.
        PlanError: There is no optimizer, or no model.
    """
    had_state = bool(getattr(optimizer, "state", True))
    try:
        return _captured(step, model, optimizer, batch, answers or Answers())
    except BaseException:
        if not had_state:
            optimizer.state.clear()
        raise


def _captured(
    step: Callable[..., Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    answers: Answers,
) -> Captured:
    with explained():
        state = State(model, optimizer)
        pretended, first = True, None
        while True:
            answers.begin()
            try:
                run = _Run(step, state, batch, answers, pretended=pretended)
                if not run.depends_on_pretended:
                    return run.captured()
                pretended = False
            except (Exception, SystemExit) as error:
                first = first or error
                if not answers.try_another():
                    raise first from None


class _Run:
    """One capture.

    Args:
        step: Of model, optimizer and batch.
        state: Of the two.
        batch: What it is called with.
        answers: What Python is told of numbers that it computes.
        pretended: Whether parameters that have no gradient are to have one meanwhile, to see
            whether the step looks at it.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: State,
        batch: Any,
        answers: Answers,
        *,
        pretended: bool,
    ) -> None:
        self._step, self.state, self._given = step, state, batch
        self._supposed = answers
        leaves, self._tree = flatten(batch)
        self._batch = named(leaves)
        _check_batch(self._batch)
        self._batch_tensors = {n: leaf for n, leaf in self._batch if isinstance(leaf, Tensor)}
        self._numbers = {**state.numbers, **batch_numbers(self._batch)}
        # before the capture, which may change what they are made of
        self._form, self._settings, self._flags = StateForm(state), state.others, flags()
        self._reads = Reads(frozenset({(id(state.optimizer), "param_groups")}))
        self._left = Left(state, self._reads)
        with state.with_memory() as self._objects:
            self._gradients = Gradients(state, self._objects, pretended)
            self._trace()

    def _trace(self) -> None:
        given = [Argument(n, tuple(t.shape), t.dtype, False) for n, t in self.state.tensors.items()]
        given += [_given(n, t) for n, t in self._gradients.tensors.items()]
        given += describe(self._batch)
        _check_not_empty(given)
        self._names = [argument.name for argument in given]
        counts = {n for n, t in self.state.tensors.items() if is_count(n, t)}
        self._there = counts.union(n for n, t in self._batch_tensors.items() if not t.is_meta)
        tensors = [
            *self._objects.values(),
            *self._gradients.tensors.values(),
            *self._batch_tensors.values(),
        ]
        self._known = {id(tensor) for tensor in tensors}
        objects = objects_by_type()
        # not isinstance(), which some objects answer with a warning
        of_tensors = [ones for kind, ones in objects.items() if issubclass(kind, Tensor)]
        there = {id(one) for ones in of_tensors for one in ones}
        self._reads.look_around(objects)
        self._memos = Memos(objects)
        del objects
        with self._memos.forgotten():
            program = Program(
                self._run_step,
                tensors,
                list(self._numbers.values()),
                DECOMPOSITIONS,
                lambda tensor: id(tensor) not in there,
                [name in self._there for name in self._names],
                self._supposed,
            )
        self._outside = places_of(program.outside, self._reads, self._gradients)
        numbers = [_number(name, isinstance(v, int)) for name, v in self._numbers.items()]
        met = zip(self._outside, program.outside, strict=True)
        arguments = [*given, *numbers, *(_given(name, tensor) for name, tensor in met)]
        self._answers = program.numbers
        self._computed = program.numbers.computed
        names = [argument.name for argument in arguments]
        try:
            self._found = read(program.module, names, self._numbers)
        except AliasedError:
            self._found = read(program.without_writes(), names, self._numbers)
        arguments += [_number(n, number.is_int) for n, number in self._found.numbers.items()]
        self._sort(arguments)
        there_before = dict(zip(self._names, tensors, strict=True))
        there_before.update(zip(self._outside, program.outside, strict=True))
        check_apart(self._written, there_before)

    def _run_step(self, *values: Any) -> list[Any]:
        """The step on stand-ins: its state afterwards, what it returns, and what it leaves."""
        tracers = tracers_module()
        tensors = dict(zip(self._names, values, strict=False))
        given_numbers = values[len(self._names) :]
        named_ = zip(given_numbers, self._numbers, strict=True)
        self._left.names = {number.node.expr: name for number, name in named_}
        numbers = dict(zip(self._numbers, given_numbers, strict=True))
        # containers of its own, which it may change as long as the user's can be changed alike
        given = [numbers.get(name, leaf) for name, leaf in self._batch]
        batch = self._tree.fill(iter(given))
        with ExitStack() as stack:
            changed = stack.enter_context(self.state.given(numbers))
            stack.enter_context(self._gradients.watched(tensors))
            gradients, alike = self._gradients, self.state.is_dense_or_not
            stack.enter_context(followed(self._is_known, gradients.is_none, alike))
            stack.enter_context(sequences.watched())
            stack.enter_context(uncompiled())
            try:
                with self._reads.recording(self._step, tracers):
                    returned = self._step(self.state.model, self.state.optimizer, batch)
                settings = changed()
                self._removed = tuple(removed(self._tree, batch, given))
            except BaseException:
                self._left.undo()
                raise
            results, self._out_tree = flatten(returned)
            returned = [leaf.value for leaf in results]
            self._results = [number_of(v, self._left.names) or v for v in returned]
            self._left.look(settings)
            for value in self._results:
                if not isinstance(value, (Tensor, Number, *SYMBOLS)):
                    check_real(value, "returns")
        found = [
            *self._objects.values(),
            *self._batch_tensors.values(),
            *self._results,
            *self._left.values,
            *self._gradients.left().values(),
        ]
        stand_ins = current_stand_ins()
        stand_ins.check_apart(found)
        users = {**self._objects, **self._batch_tensors}
        users = {name: t for name, t in users.items() if name not in self._left.rebound}
        self._aliases = {
            index: alias
            for index, value in enumerate((*self._results, *self._left.values))
            if isinstance(value, Tensor) and (alias := stand_ins.alias_of(value, users))
        }
        with torch.no_grad():
            return [v.detach() if isinstance(v, Tensor) else _unless_constant(v) for v in found]

    def _is_known(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known or is_stand_in(tensor)

    def _sort(self, arguments: list[Argument]) -> None:
        """What the program returns, by what becomes of it."""
        returned = iter(self._found.results)
        state = {name: next(returned) for name in self.state.tensors}
        batch = {name: next(returned) for name in self._batch_tensors}
        results = [_result(next(returned), value) for value in self._results]
        left = [_result(next(returned), value) for value in self._left.values]
        gradients = {name: next(returned) for name in self._gradients.left()}
        outside = {name: next(returned) for name in self._outside}
        state |= {name: left[index].name for name, index in self._left.rebound.items()}
        self._updated = {name: new for name, new in state.items() if new != name}
        self._written = {n: new for n, new in {**batch, **outside}.items() if new != n}
        for name, new in {**self._updated, **self._written}.items():
            _check_update(self._found.flat, new, name)
        others = [*self._updated.values(), *self._written.values(), *_names(results), *_names(left)]
        inputs = _read_inputs(self._found.flat, others)
        self.depends_on_pretended = self._gradients.are_read(inputs)
        self._left_gradients = gradients if self._gradients.are_kept(inputs) else {}
        written = [Returned(new, False) for new in self._written.values()]
        kept = [Returned(new, False) for new in self._left_gradients.values()]
        asked = [Returned(name, True) for name in self._found.asked]
        self._all = [*results, *left, *kept, *written, *asked]
        self._arguments = arguments

    def captured(self) -> Captured:
        """What was found."""
        outputs = (*self._updated.values(), *_names(self._all))
        # what is drawn and not used moves the generator on
        live = replace(self._found.flat, outputs=(*outputs, *self._found.draws)).live()
        flat, draws = _draw_once(replace(live, outputs=outputs), self._found.draws)
        given = {a.name for a in self._arguments if a.is_given}
        _check_draws(flat, draws, given | self._batch_tensors.keys())
        inputs = _read_inputs(flat, flat.outputs)
        arguments = [a for a in self._arguments if not a.is_given or a.name in inputs]
        flat = replace(flat, inputs=tuple(a.name for a in arguments))
        gradients = self._gradients
        left = Leavings(
            len(self._left.values),
            tuple(self._left.effects),
            tuple(self._left_gradients),
            tuple(n for n in gradients.left() if n not in self._left_gradients),
            gradients.emptied(),
            self._left.flags,
            self._left.told,
            self._removed,
            tuple(self._written),
            self._aliases,
        )
        looked_at = inputs | _read_inputs(self._found.known, self._found.known.outputs)
        guards = Guards(
            self.state,
            self._form,
            self._settings,
            BatchForm.of(self._tree, self._batch, self._elsewhere()),
            self._numbers,
            self._answers,
            tuple(self._reads.read.values()),
            {n: p for n, p in self._outside.items() if n in looked_at or n in self._written},
            tuple(self._left.containers),
            gradients.there if gradients.are_looked_at(inputs) else None,
            (*self._reads.named.members(), *self._memos.kept),
            self._flags,
            self._loose(inputs),
            self._found.known,
        )
        questions = tuple(self._supposed.asked)
        known = tuple(self._answers.known)
        return Captured(
            flat,
            tuple(arguments),
            self.state,
            tuple(self._updated),
            tuple(self._all),
            self._out_tree,
            draws,
            {n: number for n, number in self._found.numbers.items() if n in inputs},
            left,
            guards,
            Decisions(questions, known, self._computed),
            next(iter(self._reads.effects), None),
        )

    def _elsewhere(self) -> dict[int, Tensor]:
        """Tensors of the batch that are in other places, too, by `id`."""
        given = {id(tensor): tensor for tensor in self._batch_tensors.values()}
        found = {id(tensor) for tensor in self.state.tensors.values()}
        for _, frozen in self._reads.read.values():
            found.update(id(i) for i in inside(frozen.value) if isinstance(i, Tensor))
        return {key: tensor for key, tensor in given.items() if key in found}

    def _loose(self, inputs: Collection[str]) -> frozenset[int]:
        """Tensors that are looked up anew at each call; none if the step puts some elsewhere.

        Nor does it matter which tensor was left where the step puts another one, as a module does
        that keeps what it made last, and looks whether there is any.
        """
        kept = [leaf for effect in self._left.effects for leaf in effect.leaves]
        if any(isinstance(leaf, Tensor) for leaf in kept):
            return frozenset()
        found = [p[0].get() for n, p in self._outside.items() if n in inputs]
        read = self._reads.read
        replaced = [read[at][1].value for at in self._reads.written if at in read]
        found += [value for value in replaced if isinstance(value, Tensor)]
        return frozenset(map(id, found)) - frozenset(map(id, self.state.tensors.values()))


def _given(name: str, tensor: Tensor) -> Argument:
    return Argument(name, tuple(tensor.shape), tensor.dtype, False, True)


def _number(name: str, is_int: bool) -> Argument:
    return Argument(name, (), torch.int64 if is_int else torch.float64, False, True)


def _unless_constant(value: Any) -> Any:
    """A graph returns nothing for what is no value of the program."""
    return value if isinstance(value, SYMBOLS) else None


def _result(found: Any, value: Any) -> Any:
    """A leaf of what a step returned, as it was read of its graph."""
    if not isinstance(value, (Tensor, *SYMBOLS)):
        return value
    if isinstance(found, Name):
        return Returned(found, not isinstance(value, Tensor))
    return found


def _names(results: Sequence[Any]) -> list[str]:
    return [result.name for result in results if isinstance(result, Returned)]


def _read_inputs(flat: Flat, outputs: Sequence[str]) -> set[str]:
    """The inputs that some outputs follow from."""
    live = replace(flat, outputs=tuple(outputs)).live()
    found = {name for line in live.lines for name in line.inputs}
    return found.union(outputs).intersection(flat.inputs)


def _check_batch(leaves: Sequence[tuple[str, Any]]) -> None:
    for name, leaf in leaves:
        if hasattr(type(leaf), "__next__"):
            raise BatchError(
                f"a batch is there when the step is called; {name} is a {type(leaf).__name__}, "
                "which makes its items one by one: give a list of them"
            )
        library = type(leaf).__module__.split(".")[0]
        if isinstance(leaf, np.ndarray) or library in ("jax", "jaxlib"):
            raise BatchError(
                "tensors of a batch are PyTorch's; "
                f"{name} is a {type(leaf).__module__}.{type(leaf).__name__}: give "
                "torch.as_tensor of it to the step"
            )


def _check_not_empty(arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        if argument.is_batch and 0 in argument.shape[:1]:
            raise BatchError(
                "a batch holds at least one example, in the leading dim; got "
                f"{argument.name} of shape {argument.shape}: plan with a batch as it will be "
                "trained"
            )


def _check_update(flat: Flat, new: Any, name: str) -> None:
    if not isinstance(new, str) or flat.kinds[new] != flat.kinds[name]:
        became = flat.kinds[new] if isinstance(new, str) else repr(new)
        raise UnsupportedStepError(
            "a step keeps shape and type of what it updates; "
            f"{name}, {flat.kinds[name]}, becomes {became}"
        )


def _draw_once(flat: Flat, draws: Mapping[str, Any]) -> tuple[Flat, tuple[str, ...]]:
    """Let those that read the same numbers twice, as checkpointing does, read one value."""
    first: dict[Any, str] = {}
    made = {name for line in flat.lines for name in line.outputs}
    instead = {name: first.setdefault(key, name) for name, key in draws.items() if name in made}
    flat = flat.renamed({a: b for a, b in instead.items() if a != b})
    kept = replace(flat, outputs=(*flat.outputs, *first.values())).live()
    return replace(kept, outputs=flat.outputs), tuple(first.values())


def _check_draws(flat: Flat, draws: Collection[str], free: Collection[str]) -> None:
    known = known_from(flat.lines, {*free, *flat.constants})
    for name in draws:
        if name not in known:
            raise UnsupportedStepError(
                "random numbers are drawn before the step runs, so that they are those of one "
                f"device; {name}{_made(flat, name)} depends on weights: draw uniform numbers and "
                "compare them"
            )


def _made(flat: Flat, name: str) -> str:
    """Where a value comes from, if the step makes it."""
    origin = next((line.origin for line in flat.lines if name in line.outputs), None)
    return "" if origin is None else f", made {origin},"
