"""Loads state from state dicts or files; each process takes the parts that it keeps."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from frontends.base.present import present
from frontends.errors import CheckpointError
from frontends.torch.base.calls import Tensor
from frontends.torch.base.flat import TensorType
from frontends.torch.capture.arguments import State
from frontends.torch.run.engine import Sliceable
from frontends.torch.run.kept_state import Parts
from frontends.torch.run.runtime import Runtime
from frontends.torch.state import files
from frontends.torch.state.initial import init_optimizer
from frontends.torch.state.state_dict import Path, entries_of, written

Given = Mapping[str, Any] | str | os.PathLike[str]
"""A state dict as `state_dict.assemble` makes it, or a path to safetensors files."""


class Source(Protocol):
    """Where tensors are read from."""

    @property
    def sections(self) -> Collection[str]:
        """The state dicts that the source has: `model`, and maybe `optimizer`."""

    @property
    def kinds(self) -> Mapping[Path, TensorType]:
        """Shapes and types of all tensors, including those that only other processes have."""

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Sliceable]]:
        """Yield tensors one by one; all processes have to read the same ones in the same order."""


def load_state_dict(runtime: Runtime, state: State, given: Given, strict: bool) -> None:
    """Set the state of a runtime; if this fails, nothing is changed.

    Args:
        runtime: Holds the state.
        state: The state of the user's model and optimizer; the optimizer also gets the settings in
            the given `param_groups`, such as learning rates.
        given: Whole tensors or DTensors of any layout, under the names of model and optimizer; a
            process may have all or some of them. Or files with the model's weights.
        strict: Whether the names must be exactly those of the state dicts.

    Raises:
        CheckpointError: A tensor is missing, or has another shape or type, or cannot be read.
        InitializationError: The optimizer has no state, none is given, and none can be made.
    """
    parts, entries = Parts(), entries_of(state)
    groups = _groups(state, given)
    with _opened(given) as source:
        paths = _checked(source, entries, state, strict)
        for path, whole in source.read(paths):
            runtime.cut(entries[path], whole, parts)
    init_optimizer(runtime, state, parts.names)
    runtime.take(parts)
    for group, kept in zip(state.optimizer.param_groups, groups, strict=False):
        group.update((key, value) for key, value in kept.items() if key != "params")


@contextmanager
def _opened(given: Given) -> Iterator[Source]:
    if isinstance(given, Mapping):
        yield _Tensors(given)
        return
    with files.opened(given) as readers:
        yield _Files(readers)


def _groups(state: State, given: Given) -> Sequence[Mapping[str, Any]]:
    """Return the `param_groups` of the given optimizer's state dict; none if there is none."""
    optimizer = given.get("optimizer") if isinstance(given, Mapping) else None
    if optimizer is None:
        return ()
    if not (isinstance(optimizer, Mapping) and {"state", "param_groups"} <= optimizer.keys()):
        raise CheckpointError(
            "an optimizer's state is loaded in the form of its state_dict(), with state and "
            f"param_groups; got {_keys(optimizer)}"
        )
    groups: Sequence[Mapping[str, Any]] = optimizer["param_groups"]
    expected = [len(group["params"]) for group in state.optimizer.param_groups]
    sizes = [len(group["params"]) for group in groups]
    if expected != sizes:
        raise CheckpointError(
            "an optimizer goes on with the groups that it has; got groups of "
            f"{sizes} parameters instead of {expected}"
        )
    return groups


def _checked(source: Source, entries: Mapping[Path, str], state: State, strict: bool) -> list[Path]:
    """Return the paths to read, in an order that is the same in all processes."""
    expected = {path: name for path, name in entries.items() if path[0] in source.sections}
    known = {name for path, name in expected.items() if path in source.kinds}
    missing = [written(path) for path, name in expected.items() if name not in known]
    unexpected = [written(path) for path in source.kinds if path not in expected]
    paths = [path for path in expected if path in source.kinds]
    others = []
    for path in paths:
        tensor, kind = state.tensors[entries[path]], source.kinds[path]
        wanted = TensorType(tuple(tensor.shape), tensor.dtype)
        if kind != wanted:
            others.append(f"{written(path)} is {kind} and not {wanted}")
    if others or (strict and (missing or unexpected)):
        raise CheckpointError(
            "state is loaded under the names, and with the shapes and types, that model and "
            f"optimizer have; {_some('missing', missing)}, {_some('unexpected', unexpected)}, "
            f"{_some('different', others)}: build the model in the type of its weights, and pass "
            "strict=False to take what fits by name"
        )
    return paths


def _keys(value: Any) -> str:
    """Describe what the user passed instead of a state dict."""
    if not isinstance(value, Mapping):
        return type(value).__name__
    return ", ".join(map(str, list(value)[:3])) or "nothing"


def _some(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {', '.join(names[:3]) or 'none'}{more}"


class _Files:
    """Weights in files that each process reads."""

    def __init__(self, readers: Mapping[str, Any]) -> None:
        self.sections = ("model",)
        self._readers: Mapping[Path, Any] = {("model", name): r for name, r in readers.items()}
        self.kinds = {path: _kind_in_file(reader) for path, reader in self._readers.items()}

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Sliceable]]:
        return ((path, self._readers[path]) for path in paths)


def _kind_in_file(reader: Any) -> TensorType:
    shape = tuple(reader.get_shape())
    return TensorType(shape, (reader[:0] if shape else reader[...]).dtype)


class _Tensors:
    """State dicts, of which processes may have different tensors."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        is_one = given.keys() <= {"model", "optimizer"} and isinstance(given.get("model"), Mapping)
        if not is_one:
            raise CheckpointError(
                "state is loaded in the form of state_dict(), under model and optimizer, or model "
                f'alone; got {_keys(given)}: pass {{"model": model_state_dict}}'
            )
        self.sections = tuple(given)
        self._mine = {path: t for path, t in _leaves(given) if _has_part(t)}
        mine = {path: TensorType(tuple(t.shape), t.dtype) for path, t in self._mine.items()}
        self._shared = dist.is_available() and dist.is_initialized()
        everywhere = [mine]
        if self._shared:
            everywhere = [mine for _ in range(dist.get_world_size())]
            dist.all_gather_object(everywhere, mine)
        self._owners: dict[Path, list[int]] = {}
        self.kinds: dict[Path, TensorType] = {}
        for rank, kinds in enumerate(everywhere):
            for path, kind in kinds.items():
                self._owners.setdefault(path, []).append(rank)
                if self.kinds.setdefault(path, kind) != kind:
                    raise CheckpointError(
                        "processes load the same state; process "
                        f"{rank} has {written(path)} of {kind}, and another of {self.kinds[path]}"
                    )

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Sliceable]]:
        for path in paths:
            whole, owners = self._mine.get(path), self._owners[path]
            if isinstance(whole, DTensor):
                whole = whole.full_tensor()
            if self._shared and len(owners) < dist.get_world_size():
                if whole is None:
                    whole = torch.empty(self.kinds[path].shape, dtype=self.kinds[path].dtype)
                whole = whole.detach().contiguous()
                dist.broadcast(whole, owners[0])
            yield path, present(whole, "this process has the tensor, or received it")


def _leaves(given: Mapping[str, Any]) -> Iterator[tuple[Path, Tensor]]:
    for key, tensor in given["model"].items():
        if isinstance(tensor, Tensor):
            yield ("model", key), tensor
    for number, kept in given.get("optimizer", {}).get("state", {}).items():
        for key, tensor in kept.items():
            if isinstance(tensor, Tensor):
                yield ("optimizer", "state", number, key), tensor


def _has_part(tensor: Tensor) -> bool:
    return not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is not None
