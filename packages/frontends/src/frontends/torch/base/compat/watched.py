"""Runs operators on stand-ins without memory, and reports each to a watcher.

Private interfaces of torch 2.13 in use: `_subclasses.fake_tensor` with its memo of tensors, and
`utils._pytree`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from frontends.torch.base.compat.values import unwatched

Tensor = torch.Tensor


class Watcher(Protocol):
    """Is notified of operators on stand-ins."""

    def given(self, stand_in: Tensor, real: Tensor) -> None:
        """Called when a tensor that has values is used for the first time."""

    def call(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Called for each operator; calls it and returns its result."""

    def values(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the current values of stand-ins; called where Python needs a number."""


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Let all tensors inside the `with` be stand-ins, which have no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), mode, _Watch(mode, watcher):
        # deepcopy compares the data pointer with 0, for which that of a stand-in suffices
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        yield


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes operators to the watcher, with stand-ins in the place of real tensors."""

    def __init__(self, mode: FakeTensorMode, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._watcher = mode, watcher
        self._real: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs or {}))
        leaves = [self._stand_in(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if torch.Tag.data_dependent_output in func.tags:
            with unwatched():
                real = iter(self._watcher.values([x for x in leaves if isinstance(x, Tensor)]))
                values = [next(real) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                args, kwargs = pytree.tree_unflatten(values, tree)
                return func(*args, **kwargs)
        result = self._watcher.call(func, *pytree.tree_unflatten(leaves, tree))
        # the memo keeps weak references to stand-ins, and Module.to() cannot swap such parameters
        converter = self._mode.fake_tensor_converter.meta_converter
        converter.tensor_memo.clear()
        converter.describer.lookup_tensor.clear()
        return result

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._real:
            stand_in = self._mode.from_tensor(tensor)
            self._real[id(tensor)] = tensor, stand_in
            self._watcher.given(stand_in, tensor)
        return self._real[id(tensor)][1]
