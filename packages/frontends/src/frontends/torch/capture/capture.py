"""Runs a user's step once on tensors without values, and records what it does.

Every value that the step reads becomes one of these:

- *state*: parameters, buffers and what the optimizer keeps, which the step updates;
- *input*, passed in at each call: the batch, numbers in it and in `param_groups`, and tensors that
  the step reads from elsewhere, which it may also write (an average of the weights);
- *constant*: a tensor that the step's own Python code creates, as `torch.tensor(3)` does;
- *guard*: whatever else Python code read (`guards`). If a guard has changed, the program is another
  one, and the step is captured again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from frontends.base.no_gc import Selection, TrackedObjects
from frontends.errors import InternalError, UnsupportedStepError
from frontends.torch.base.compat.marks import tracers_module
from frontends.torch.base.compat.operators import uncompiled
from frontends.torch.base.compat.stand_ins import current_stand_ins
from frontends.torch.base.compat.traced import TracedFunction
from frontends.torch.base.compat.values import SYMBOLS, is_stand_in
from frontends.torch.base.flat import FlatProgram
from frontends.torch.base.frozen import inside
from frontends.torch.base.host import Number, number_of
from frontends.torch.base.origins import defined
from frontends.torch.base.supposed import Answers, Decisions
from frontends.torch.base.trees import flatten, removed
from frontends.torch.capture import sequences
from frontends.torch.capture.arguments import (
    Argument,
    State,
    batch_numbers,
    check_batch,
    check_not_empty,
    describe,
    is_count,
    named,
)
from frontends.torch.capture.captured import Captured, Leavings, Returned
from frontends.torch.capture.decompositions import DECOMPOSITIONS
from frontends.torch.capture.flat_builder import Name
from frontends.torch.capture.functions import users_functions
from frontends.torch.capture.gradients import Gradients, UntouchedGradients
from frontends.torch.capture.guards import BatchForm, Guards, StateForm, flags
from frontends.torch.capture.instead import followed
from frontends.torch.capture.left import Left, check_real
from frontends.torch.capture.memoized import Memos, users_memos
from frontends.torch.capture.outside import check_apart, places_of
from frontends.torch.capture.random_draws import check_draws, draw_once
from frontends.torch.capture.read import read
from frontends.torch.capture.reads import Reads
from frontends.torch.capture.refusals import explained
from frontends.torch.capture.schedules import LookedAtError
from frontends.torch.capture.streams import is_stream
from frontends.torch.capture.writes import AliasedError

Tensor = torch.Tensor


def training_step(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the usual training step for a loss: `loss_fn(model, batch)`, gradients, and update."""

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
    *,
    follows: bool = False,
) -> Captured:
    """Trace `step(model, optimizer, batch)` without changing any of the user's objects.

    Args:
        step: A function of model, optimizer and batch.
        model: The module.
        optimizer: An optimizer of its parameters.
        batch: The batch to call the step with.
        answers: Gives answers to conditions on numbers that the step computes; by default guesses.
        follows: Whether it follows a step, and has nothing to do with gradients.

    Raises:
        BatchError: The batch is empty, or contains what no call can pass in.
        UnsupportedStepError: The step cannot be written as one program; the message says why.
        PlanError: There is no optimizer, or no model.
    """
    had_state = bool(getattr(optimizer, "state", True))
    try:
        return _captured(step, model, optimizer, batch, answers or Answers(), follows)
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
    follows: bool,
) -> Captured:
    with explained():
        state = State(model, optimizer)
        pretended, moves_schedules, first = True, False, None
        while True:
            answers.begin()
            try:
                how = {"pretended": pretended, "moves_schedules": moves_schedules}
                run = _Run(step, state, batch, answers, follows=follows, **how)
                if not run.depends_on_pretended:
                    return run.captured()
                pretended = False
            except LookedAtError:
                if moves_schedules:
                    raise InternalError("a schedule that is moved on has numbers") from None
                moves_schedules = True
            except (Exception, SystemExit) as error:
                first = first or error
                if not answers.try_another():
                    raise first from None


class _Run:
    """One attempt at a capture.

    Args:
        step: A function of model, optimizer and batch.
        state: The state of the two.
        batch: The batch to call it with.
        answers: Gives answers to conditions on numbers that the step computes.
        pretended: Whether parameters without a gradient get one during the capture, to find out
            whether the step depends on it.
        moves_schedules: Whether schedules are moved on within the step, not after it.
        follows: Whether it follows a step, and has nothing to do with gradients.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: State,
        batch: Any,
        answers: Answers,
        *,
        pretended: bool,
        moves_schedules: bool,
        follows: bool,
    ) -> None:
        self._step, self.state, self._given = step, state, batch
        self._supposed, self._follows = answers, follows
        leaves, self._tree = flatten(batch)
        self._batch = named(leaves)
        check_batch(self._batch)
        self._batch_tensors = {n: leaf for n, leaf in self._batch if isinstance(leaf, Tensor)}
        self._numbers = {**state.numbers, **batch_numbers(self._batch)}
        # read them before the capture, which may change them
        self._form, self._settings, self._flags = StateForm(state), state.others, flags()
        inputs = frozenset({(id(state.optimizer), "param_groups")})
        self._reads = Reads(inputs, moves_schedules=moves_schedules)
        self._left = Left(state, self._reads)
        with state.with_memory() as self._objects:
            if follows:
                self._gradients: Gradients = UntouchedGradients(state, self._objects)
            else:
                self._gradients = Gradients(state, self._objects, pretended)
            self._trace()

    def _trace(self) -> None:
        known = [Argument(n, tuple(t.shape), t.dtype, False) for n, t in self.state.tensors.items()]
        known += [_given(n, t) for n, t in self._gradients.tensors.items()]
        known += describe(self._batch)
        check_not_empty(known)
        self._names = [argument.name for argument in known]
        counts = {n for n, t in self.state.tensors.items() if is_count(n, t)}
        self._there = counts.union(n for n, t in self._batch_tensors.items() if not t.is_meta)
        tensors = [
            *self._objects.values(),
            *self._gradients.tensors.values(),
            *self._batch_tensors.values(),
        ]
        self._known = {id(tensor) for tensor in tensors}
        objects = _OBJECTS.by_type()
        of_tensors = [ones for kind, ones in objects.items() if issubclass(kind, Tensor)]
        existing = {id(one) for ones in of_tensors for one in ones}
        self._reads.look_around(objects)
        self._memos = Memos(objects)
        del objects
        with self._memos.forgotten():
            program = TracedFunction(
                self._run_step,
                tensors,
                list(self._numbers.values()),
                DECOMPOSITIONS,
                lambda tensor: id(tensor) not in existing,
                [name in self._there for name in self._names],
                self._supposed,
                is_forward=self._follows,
                n_examples=_n_examples(self._batch_tensors.values()),
            )
        self._outside = places_of(program.outside, self._reads, self._gradients)
        numbers = [_number(name, isinstance(v, int)) for name, v in self._numbers.items()]
        met = zip(self._outside, program.outside, strict=True)
        arguments = [*known, *numbers, *(_given(name, tensor) for name, tensor in met)]
        self._answers = program.numbers
        self._computed = program.numbers.computed
        names = [argument.name for argument in arguments]
        try:
            self._found = read(program.module, names, self._numbers)
        except AliasedError:
            self._found = read(program.without_writes(), names, self._numbers)
        arguments += [_number(n, number.is_int) for n, number in self._found.numbers.items()]
        self._sort(arguments)
        inputs = dict(zip(self._names, tensors, strict=True))
        inputs.update(zip(self._outside, program.outside, strict=True))
        check_apart(self._written, inputs)

    def _run_step(self, *values: Any) -> list[Any]:
        """Run the step on stand-ins; return the new state, the results, and values of effects."""
        tracers = tracers_module()
        tensors = dict(zip(self._names, values, strict=False))
        symbols = values[len(self._names) :]
        named_ = zip(symbols, self._numbers, strict=True)
        self._left.names = {number.node.expr: name for number, name in named_}
        numbers = dict(zip(self._numbers, symbols, strict=True))
        # a copy of the batch's containers; some changes to them can be repeated on the user's batch
        leaves = [numbers.get(name, leaf) for name, leaf in self._batch]
        batch = self._tree.fill(iter(leaves))
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
                self._removed = tuple(removed(self._tree, batch, leaves))
                results, self._out_tree = flatten(returned)
            except BaseException:
                self._left.undo()
                raise
            returned = [leaf.value for leaf in results]
            self._results = [number_of(v, self._left.names) or v for v in returned]
            self._left.look(settings)
            for value in self._results:
                if not isinstance(value, (Tensor, Number, *SYMBOLS)):
                    check_real(value, "returns")
        outputs = [
            *self._objects.values(),
            *self._batch_tensors.values(),
            *self._results,
            *self._left.values,
            *self._gradients.left().values(),
        ]
        stand_ins = current_stand_ins()
        stand_ins.check_apart(outputs)
        users = {**self._objects, **self._batch_tensors}
        users = {name: t for name, t in users.items() if name not in self._left.rebound}
        self._aliases = {
            index: alias
            for index, value in enumerate((*self._results, *self._left.values))
            if isinstance(value, Tensor) and (alias := stand_ins.alias_of(value, users))
        }
        with torch.no_grad():
            return [v.detach() if isinstance(v, Tensor) else _unless_constant(v) for v in outputs]

    def _is_known(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known or is_stand_in(tensor)

    def _sort(self, arguments: list[Argument]) -> None:
        """Divide the program's results: new state, returned values, effects, gradients, writes."""
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
        """Return the captured step."""
        outputs = (*self._updated.values(), *_names(self._all))
        # draws that are not used stay, as they advance the generator
        live = replace(self._found.flat, outputs=(*outputs, *self._found.draws)).live()
        flat, draws = draw_once(replace(live, outputs=outputs), self._found.draws)
        if self._follows:  # a loss and predictions are often two calls of the model
            flat = flat.without_repeats(draws).live()
        passed_in = {a.name for a in self._arguments if a.is_given}
        check_draws(flat, draws, passed_in | self._batch_tensors.keys())
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
        """Return, by `id`, tensors of the batch that the step also reads from other places."""
        batch = {id(tensor): tensor for tensor in self._batch_tensors.values()}
        elsewhere = {id(tensor) for tensor in self.state.tensors.values()}
        for _, frozen in self._reads.read.values():
            elsewhere.update(id(i) for i in inside(frozen.value) if isinstance(i, Tensor))
        return {key: tensor for key, tensor in batch.items() if key in elsewhere}

    def _loose(self, inputs: Collection[str]) -> frozenset[int]:
        """Return `id`s of tensors that another tensor of the same form may replace before a call.

        These are the tensors from elsewhere that each call passes in, and those that the step
        itself replaces: a module may keep its last result, and check whether there is any. There
        are none if an effect puts one of the user's tensors somewhere, for which identity matters.
        """
        kept = [leaf for effect in self._left.effects for leaf in effect.leaves]
        if any(isinstance(leaf, Tensor) for leaf in kept):
            return frozenset()
        replaceable = [p[0].get() for n, p in self._outside.items() if n in inputs]
        read = self._reads.read
        replaced = [read[at][1].value for at in self._reads.written if at in read]
        replaceable += [value for value in replaced if isinstance(value, Tensor)]
        return frozenset(map(id, replaceable)) - frozenset(map(id, self.state.tensors.values()))


def _selection(kind: type) -> Selection | None:
    """Return what selects the objects of a type that matter to a capture if they exist before."""
    # not isinstance(), for which some objects raise a warning
    if issubclass(kind, Tensor) or is_stream(kind):
        return iter
    if issubclass(kind, FunctionType):
        return users_functions
    return users_memos if issubclass(kind, functools._lru_cache_wrapper) else None


_OBJECTS = TrackedObjects(_selection)
"""Lists tensors, streams, and the user's functions and caches."""


def _given(name: str, tensor: Tensor) -> Argument:
    return Argument(name, tuple(tensor.shape), tensor.dtype, False, True)


def _n_examples(batch: Iterable[Tensor]) -> int:
    """Return how many examples the tensors of a batch hold, of which one may have several rows."""
    return max(1, math.gcd(*(tensor.shape[0] for tensor in batch if tensor.dim())))


def _number(name: str, is_int: bool) -> Argument:
    return Argument(name, (), torch.int64 if is_int else torch.float64, False, True)


def _unless_constant(value: Any) -> Any:
    """Return None for a constant: the traced graph has results for values of the program only."""
    return value if isinstance(value, SYMBOLS) else None


def _result(result: Any, value: Any) -> Any:
    """Return a leaf of what a step returned, in terms of the program read from its graph."""
    if not isinstance(value, (Tensor, *SYMBOLS)):
        return value
    if isinstance(result, Name):
        return Returned(result, not isinstance(value, Tensor))
    return result


def _names(results: Sequence[Any]) -> list[str]:
    return [result.name for result in results if isinstance(result, Returned)]


def _read_inputs(flat: FlatProgram, outputs: Sequence[str]) -> set[str]:
    """Return the inputs that some outputs depend on."""
    live = replace(flat, outputs=tuple(outputs)).live()
    read_by_lines = {name for line in live.lines for name in line.inputs}
    return read_by_lines.union(outputs).intersection(flat.inputs)


def _check_update(flat: FlatProgram, new: Any, name: str) -> None:
    if not isinstance(new, str) or flat.kinds[new] != flat.kinds[name]:
        became = flat.kinds[new] if isinstance(new, str) else repr(new)
        raise UnsupportedStepError(
            "a step keeps shape and type of what it updates; "
            f"{name}, {flat.kinds[name]}, becomes {became}"
        )
