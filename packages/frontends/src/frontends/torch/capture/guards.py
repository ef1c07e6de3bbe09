"""Guards: the conditions under which a captured program does what the step would do.

They are checked before every call. A guard is a value that Python code read while the step was
captured, such as a flag of a module, or one that determines which tensors there are: the structure
of the batch, the parameters of the model, and which of them get gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frontends.torch.base.compat.symbols import Numbers
from frontends.torch.base.flat import FlatProgram
from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.base.trees import Tree
from frontends.torch.capture.arguments import State
from frontends.torch.capture.gone import GoneGradient
from frontends.torch.capture.gradients import is_there
from frontends.torch.capture.location import Location
from frontends.torch.capture.memoized import Kept
from frontends.torch.capture.named import Members
from frontends.torch.capture.read import known_name

Tensor = torch.Tensor
Form = tuple[Any, ...]


_SETTINGS = (
    torch.get_float32_matmul_precision,
    torch.get_num_threads,
    torch.is_anomaly_enabled,
    *(torch._C._get_cudnn_enabled, torch._C._get_cudnn_benchmark),
    *(torch._C._get_cudnn_deterministic, torch._C._get_math_sdp_enabled),
    *(torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled),
)
"""Functions that return settings of torch, which code may read and operators depend on."""


def form_of(leaf: Any) -> Form:
    """Return the properties of a leaf that must not change: for a tensor all but its values."""
    if isinstance(leaf, Tensor):
        strides = leaf.stride() if leaf.layout == torch.strided else None
        return type(leaf), leaf.shape, leaf.dtype, strides, leaf.device, leaf.requires_grad
    if type(leaf) in (int, float):
        return (type(leaf),)
    return ("value", type(leaf))


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The structure of a batch, and shapes and types of its leaves."""

    tree: Tree
    forms: tuple[Form, ...]
    values: tuple[Frozen | None, ...]
    """Copies of leaves that are neither tensors nor numbers; None for the others."""

    names: tuple[str, ...]
    same: tuple[tuple[int, int | Tensor], ...]
    """Leaves that are the same tensor as an earlier leaf, or as one from elsewhere: the index of
    the leaf, and that of the other leaf or the other tensor."""

    @classmethod
    def of(
        cls,
        tree: Tree,
        leaves: Sequence[tuple[str, Any]],
        elsewhere: Mapping[int, Tensor] | None = None,
    ) -> BatchForm:
        """Return the form of a batch.

        Args:
            tree: Its structure.
            leaves: Its leaves with their names.
            elsewhere: By `id`, tensors that the step may also read from other places.
        """
        forms = tuple(form_of(leaf) for _, leaf in leaves)
        values = tuple(
            freeze(leaf) if form[0] == "value" else None
            for (_, leaf), form in zip(leaves, forms, strict=True)
        )
        met: dict[int, int | Tensor] = dict(elsewhere or {})
        same: list[tuple[int, int | Tensor]] = []
        for place, (_, leaf) in enumerate(leaves):
            if isinstance(leaf, Tensor):
                if id(leaf) in met:
                    same.append((place, met[id(leaf)]))
                else:
                    met[id(leaf)] = place
        return cls(tree.bare(), forms, values, tuple(name for name, _ in leaves), tuple(same))

    def difference(self, tree: Tree, leaves: Sequence[tuple[str, Any]]) -> str | None:
        """Return how another batch differs; None if it does not."""
        if tree != self.tree:
            return "the structure of the batch"
        for (name, leaf), form, value in zip(leaves, self.forms, self.values, strict=True):
            if form_of(leaf) != form:
                return f"{name}, {_shown(form)} and then {_shown(form_of(leaf))}"
            if value is not None and not value.holds(leaf):
                return f"{name}, {value.value!r:.60} and then {leaf!r:.60}"
        for place, other in self.same:
            name, leaf = leaves[place]
            if leaf is not (leaves[other][1] if isinstance(other, int) else other):
                return f"{name}, which was the same tensor as another one that the step reads"
        return None


def _shown(form: Form) -> str:
    if len(form) > 2:
        return f"{str(form[2]).removeprefix('torch.')}{list(form[1])}"
    return str(getattr(form[-1], "__name__", form[-1]))


class StateForm:
    """Which tensors a model and an optimizer have, where, and which of them get gradients."""

    def __init__(self, state: State) -> None:
        self.places: list[tuple[Any, Any, Any]] = []
        """Containers, keys, and the objects there, which are compared by identity."""

        self._sizes: list[tuple[Any, int]] = []
        model, optimizer = state.model, state.optimizer
        for module in model.modules():
            for part in (module._parameters, module._buffers, module._modules):
                self._sizes.append((part, len(part)))
                self.places += [(part, key, value) for key, value in part.items()]
        self._sizes.append((optimizer.state, len(optimizer.state)))
        for kept in optimizer.state.values():
            self._sizes.append((kept, len(kept)))
            self.places += [(kept, k, t) for k, t in kept.items() if isinstance(t, Tensor)]
        parameters = list(model.parameters())
        self._flags = [(p, p.requires_grad) for p in parameters]
        self._kinds = [(t, t.shape, t.dtype) for t in state.tensors.values()]

    def difference(self) -> str | None:
        """Return what has changed; None if nothing has."""
        for part, size in self._sizes:
            if len(part) != size:
                return "the parts of the model, or what its optimizer keeps"
        for part, key, value in self.places:
            if part.get(key) is not value:
                return f"{key!r} in the model or its optimizer, which is another object"
        for parameter, flag in self._flags:
            if parameter.requires_grad is not flag:
                return f"requires_grad of a parameter, {flag} and then {not flag}"
        for tensor, shape, dtype in self._kinds:
            if tensor.shape != shape or tensor.dtype != dtype:
                return "shape or type of a parameter"
        return None


@dataclass
class Guards:
    """All guards of one captured program."""

    state: State
    form: StateForm
    settings: tuple[Frozen, ...]
    batch: BatchForm
    numbers: Mapping[str, float | int]
    """The numbers of batch and `param_groups` at the capture, by name."""

    answers: Numbers
    """The answers that Python got to conditions on numbers."""

    places: tuple[tuple[Location, Frozen], ...]
    """What Python code read: where, and what was there."""

    outside: Mapping[str, tuple[Location, ...]]
    """Where tensors are that belong to neither the model nor the optimizer, by name."""

    containers: tuple[tuple[Location, ...], ...]
    """For each list or dict that the step changes, all places where it is."""

    gradients: Mapping[str, bool] | None
    """Which parameters have a gradient when the step begins; None if the step does not depend on
    it."""

    others: tuple[Members | Kept, ...]
    """Members of libraries that the step names, and results in caches of the user's functions."""

    flags: tuple[Any, ...]
    """Settings of torch, as `flags` returns them."""

    loose: frozenset[int]
    """`id`s of tensors that another tensor of the same form may replace."""

    known: FlatProgram
    """A program that computes the tensors whose numbers Python reads, before the step runs."""

    _held: tuple[Any, ...] | None = None

    def difference(
        self,
        tree: Tree,
        leaves: Sequence[tuple[str, Any]],
        value_of: Callable[[str], Tensor],
    ) -> str | None:
        """Return what has changed since the capture; None if the program is still valid.

        Args:
            tree: The structure of the batch.
            leaves: The leaves of the batch with their names.
            value_of: Returns the value of a tensor of the state.
        """
        return next(self._differences(tree, leaves, value_of), None)

    def _differences(
        self,
        tree: Tree,
        leaves: Sequence[tuple[str, Any]],
        value_of: Callable[[str], Tensor],
    ) -> Iterator[str]:
        batch = self.batch.difference(tree, leaves)
        if batch is not None:
            yield batch
            return
        state = self.form.difference()
        if state is not None:
            yield state
            return
        for place, frozen in self.places:
            now = place.get()
            if not frozen.holds(now, self.loose):
                yield f"{place.name}, {_text(frozen.value)} and then {_text(now)}"
        for other in self.others:
            if changed := other.difference():
                yield changed
        if flags() != self.flags:
            yield "a setting of torch, such as its default type, autocast or the gradient mode"
        now = {**self.state.numbers, **{n: v for n, v in leaves if n in self.numbers}}
        if {n: type(v) for n, v in now.items()} != {n: type(v) for n, v in self.numbers.items()}:
            yield "the type of a number in param_groups"
        others = self.state.others
        if len(others) != len(self.settings) or not all(
            a.holds(b.value) for a, b in zip(self.settings, others, strict=True)
        ):
            yield "a setting in param_groups that is no number"
        if self.gradients is not None:
            parameters = dict(self.state.model.named_parameters())
            if any(
                isinstance(parameters[name].grad, GoneGradient)
                or is_there(parameters[name]) is not flag
                for name, flag in self.gradients.items()
            ):
                yield "which parameters have a gradient"
        for name, places in self.outside.items():
            first = places[0].get()
            if any(place.get() is not first for place in places[1:]):
                yield f"{name}, which was in several places"
        if self.containers:
            contents = [[place.get() for place in places] for places in self.containers]
            if any(one is not same[0] for same in contents for one in same[1:]):
                yield "a list or dict that the step changes, which was in several places"
            if len({id(same[0]) for same in contents}) < len(contents):
                yield "lists or dicts that the step changes, which are the same one now"
        if not self._answers_hold(tuple(self.numbers_now(leaves, value_of).values())):
            yield "a number on which the step's Python code depends"

    def numbers_now(
        self, leaves: Sequence[tuple[str, Any]], value_of: Callable[[str], Tensor]
    ) -> dict[str, float | int]:
        """Return the numbers that are known before the step runs, by name.

        Args:
            leaves: The leaves of the batch with their names.
            value_of: Returns the value of a tensor of the state.
        """
        now = {**self.state.numbers, **{n: v for n, v in leaves if n in self.numbers}}
        if self.known.outputs:
            values = {name: leaf.detach() for name, leaf in leaves if isinstance(leaf, Tensor)}
            values |= {name: places[0].get() for name, places in self.outside.items()}
            values |= {n: torch.tensor(v) for n, v in now.items()}
            read = {name for line in self.known.lines for name in line.inputs}
            read.update(self.known.outputs)
            values |= {name: value_of(name) for name in self.state.tensors if name in read}
            for index, tensor in enumerate(self.known.run(values)):
                value = tensor.item()  # expressions have numbers only, so a bool becomes an int
                now[known_name(index)] = int(value) if isinstance(value, bool) else value
        return now

    def _answers_hold(self, now: tuple[Any, ...]) -> bool:
        if now != self._held:
            if not self.answers.holds(now):
                return False
            self._held = now
        return True


def flags() -> tuple[Any, ...]:
    """Return the settings of torch that operators depend on besides their arguments."""
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        *(getter() for getter in _SETTINGS),
    )


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}{list(value.shape)}"
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return f"{value!r:.60}"
    return f"a {type(value).__name__}"
