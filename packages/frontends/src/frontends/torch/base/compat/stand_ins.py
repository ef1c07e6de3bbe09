"""Replaces the user's tensors by stand-ins, through whatever name or list a step reaches them.

Private interfaces of torch 2.13 in use: `_subclasses.fake_tensor`, the tracer of `make_fx` and how
it tracks a tensor (`fx.experimental.proxy_tensor`), the stack of active modes, schemas of
operators, and `utils._pytree`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, track_tensor_tree
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frontends.errors import UnsupportedStepError
from frontends.torch.base.compat.values import (
    DATA_DEPENDENT_SHAPES,
    is_stand_in,
    known_number,
    place_of,
    stand_in_of,
)
from frontends.torch.base.lengths import of_known_shape
from frontends.torch.base.origins import Origins

Tensor = torch.Tensor


class SharedMemoryError(Exception):
    """A tensor shares memory with another one in a way that no view expresses."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that is one of the user's, or a view of it."""

    name: str
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Shape, strides and offset in elements; None if it is that tensor itself."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself or the view of it that this alias is."""
        if self.view is None:
            return tensor
        shape, stride, offset = self.view
        return tensor.detach().as_strided(shape, stride, tensor.storage_offset() + offset)


class StandIns(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator on stand-ins in the place of the user's tensors."""

    def __init__(
        self, mode: FakeTensorMode, is_made_here: Callable[[Tensor], bool], n_examples: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._n_examples = n_examples
        self._fake, self._is_made_here = mode, is_made_here
        self._by_id: dict[int, Tensor] = {}
        self._by_place: dict[Any, Tensor] = {}
        self._by_memory: dict[int, tuple[Tensor, Tensor]] = {}
        self._rebound: dict[int, tuple[Tensor, Tensor]] = {}
        """By `id`, tensors whose `.data` was set, and what they hold since then."""

        self.outside: list[Tensor] = []
        self.nodes: list[Node] = []
        self.origins: Origins | None = None

    def rebind(self, tensor: Tensor, value: Tensor) -> None:
        """Let a tensor share memory and values of another one from now on, as `.data =` does."""
        with torch.no_grad():
            self._rebound[id(tensor)] = tensor, value.detach()

    def rebound(self, tensor: Tensor) -> Tensor | None:
        """Return what a tensor holds since its `.data` was set; None if it was not."""
        entry = self._rebound.get(id(tensor))
        return None if entry is None else entry[1]

    def alias_of(self, tensor: Tensor, users: Mapping[str, Tensor]) -> Alias | None:
        """Return which user's tensor this one is or is a view of; None if of none."""
        if not isinstance(tensor, FakeTensor):
            name = next(
                (name for name, users_tensor in users.items() if users_tensor is tensor), None
            )
            return None if name is None else Alias(name, None)
        if not tensor.numel() or id(tensor) in self._rebound:
            return None
        memory = place_of(tensor)[0]
        for name, users_tensor in users.items():
            fake = self._by_id[id(users_tensor)]
            if id(users_tensor) not in self._rebound and place_of(fake)[0] == memory:
                if fake.dtype != tensor.dtype or not fake.numel():
                    return None
                offset = int(tensor.storage_offset()) - int(fake.storage_offset())
                return Alias(name, (tuple(tensor.shape), tensor.stride(), offset))
        return None

    def check_apart(self, others: Iterable[Any]) -> None:
        """Check that a tensor whose `.data` was set overlaps with no other tensor after the step.

        Parts of one memory that do not overlap are allowed: `vector_to_parameters` sets such.

        Raises:
            UnsupportedStepError: It overlaps with one.
        """
        remaining = [self.of(t) for t in (*others, *self.outside) if isinstance(t, Tensor)]
        sharing: dict[int, dict[int, Tensor]] = {}
        for tensor in remaining:
            sharing.setdefault(place_of(tensor)[0], {})[id(tensor)] = tensor
        for tensor, now in self._rebound.values():
            alike = sharing.get(place_of(now)[0], {})
            apart = [other for other in alike.values() if other is not now]
            if id(now) in alike and any(_overlap(now, other) for other in apart):
                raise UnsupportedStepError(
                    "tensors of a model share their memory with nothing else after a step; this "
                    f"one sets the data of a tensor of {tensor.dtype}{list(tensor.shape)} to a "
                    "tensor that is kept elsewhere, too: set them to a clone of it"
                )

    def add(self, real: Tensor, fake: Tensor) -> None:
        """Register the stand-in of a tensor."""
        self._by_id[id(real)] = fake
        if real.device.type != "meta":
            memory, place = place_of(real)
            self._by_place.setdefault((memory, place, real.dtype), fake)
            if real.numel():
                self._by_memory.setdefault(memory, (real, fake))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self.of, (args, kwargs or {}))
        if func is torch.ops.aten.equal.default and args[0].shape == args[1].shape:
            return bool((args[0] == args[1]).all())
        func, args, kwargs = of_known_shape(
            func, *_with_places(func, args, kwargs), self._n_examples
        )
        try:
            result = func(*args, **kwargs)
        except DATA_DEPENDENT_SHAPES as error:
            origin = None if self.origins is None else self.origins.find()
            error.origin = origin  # type: ignore[attr-defined]
            raise
        if not all(map(_has_sizes, pytree.tree_leaves(result))):
            args, kwargs = pytree.tree_map_only(torch.SymInt, int, (args, kwargs))
            result = func(*args, **kwargs)
        if func._schema.is_mutable:  # below autograd, which counts the writes of the user's tensor
            for declared, value in zip(func._schema.arguments, args, strict=False):
                if declared.alias_info is not None and declared.alias_info.is_write:
                    written = [leaf for leaf in pytree.tree_leaves(value) if is_stand_in(leaf)]
                    torch.autograd.graph.increment_version(written)
        return result

    def of(self, tensor: Tensor) -> Tensor:
        """Return the stand-in of a tensor; it is created if the tensor was not met before."""
        if id(tensor) in self._rebound:
            return self._rebound[id(tensor)][1]
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._by_id.get(id(tensor))
        if fake is not None:
            return fake
        if self._is_made_here(tensor):
            return tensor
        if tensor.device.type != "meta":
            memory, place = place_of(tensor)
            fake = self._by_place.get((memory, place, tensor.dtype))
            if fake is None and memory in self._by_memory:
                fake = self._view(tensor, *self._by_memory[memory])
            if fake is not None:
                self._by_id[id(tensor)] = fake
                return fake
        return self._new(tensor)

    def _view(self, tensor: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        """Return the stand-in of a tensor that is a view of a known one: a view of its stand-in."""
        offset = tensor.storage_offset() - real.storage_offset()
        n = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        n_real = 1 + sum((n - 1) * s for n, s in zip(real.shape, real.stride(), strict=True))
        if tensor.dtype != real.dtype or offset < 0 or offset + n > n_real:
            raise SharedMemoryError(
                f"a tensor of {tensor.dtype}{list(tensor.shape)} lies in the memory of another of "
                f"{real.dtype}{list(real.shape)}, and is no part of it"
            )
        return fake.as_strided(tensor.shape, tensor.stride(), offset)

    def _new(self, tensor: Tensor) -> Tensor:
        tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
        with _disable_current_modes(), self._fake:
            fake = stand_in_of(tensor)
        name = f"outside_{len(self.outside)}"
        setattr(tracer.root, name, tensor)
        proxy = tracer.create_proxy("get_attr", name, (), {})
        track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
        self.outside.append(tensor)
        self.nodes.append(proxy.node)
        self.add(tensor, fake)
        return fake


def current_stand_ins() -> StandIns:
    """Return the active `StandIns` mode; there is one while a step is captured."""
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return next(mode for mode in reversed(modes) if isinstance(mode, StandIns))


def _with_places(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with sizes and indices as Python numbers, where their values are known.

    A slice takes another part of a tensor on each device; a symbol does not tell which.
    """
    declared = {a.name: a for a in func._schema.arguments}

    def known(argument: Any, value: Any) -> Any:
        if "int" not in str(argument.type):  # a summand or factor is a `number`
            return value
        with contextlib.suppress(GuardOnDataDependentSymNode):
            return pytree.tree_map_only(torch.SymInt, known_number, value)
        return value

    positional = tuple(known(a, v) for a, v in zip(func._schema.arguments, args, strict=False))
    return positional, {name: known(declared[name], value) for name, value in named.items()}


def _has_sizes(value: Any) -> bool:
    """Return whether the shape of a result consists of Python's ints, not of torch's symbols."""
    return not isinstance(value, Tensor) or all(type(size) is int for size in value.shape)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors in one memory may have a byte in common."""
    (first, end), (first_b, end_b) = _extent(a), _extent(b)
    return first < end_b and first_b < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of its memory that a tensor uses, and the one after the last."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset())
    return first * tensor.itemsize, (first + int(last) + 1) * tensor.itemsize
