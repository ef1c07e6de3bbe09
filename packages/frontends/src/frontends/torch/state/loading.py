"""Go on from state that was kept elsewhere, of which each process takes the parts that it keeps."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from frontends.base.present import present
from frontends.errors import CheckpointError
from frontends.torch.base.calls import Tensor
from frontends.torch.capture.arguments import State, dtype_name
from frontends.torch.run.engine import Sliceable
from frontends.torch.run.runtime import Parts, Runtime
from frontends.torch.state import files
from frontends.torch.state.initial import init_optimizer
from frontends.torch.state.state_dict import Path, entries_of, written

Given = Mapping[str, Any] | str | os.PathLike[str]
"""A state dict as `state_dict.assemble` makes it, or a path to safetensors files."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)}"


class Source(Protocol):
    """Where tensors come from."""

    @property
    def sections(self) -> Collection[str]:
        """`model`, or also `optimizer`: the state dicts that are there."""

    @property
    def kinds(self) -> Mapping[Path, Kind]:
        """All that is there, in some process."""

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Sliceable]]:
        """Tensors, one after the other; all processes read the same in the same order."""


def load_state_dict(runtime: Runtime, state: State, given: Given, strict: bool) -> None:
    """Let a runtime go on from other state; if this fails, nothing is changed.

    Args:
        runtime: What goes on.
        state: Of the user's model and optimizer; the optimizer's learning rates become those given.
        given: Tensors that are whole or DTensors of any layout, under the names of model and
            optimizer; each process may have all or some. Or files of a model's weights.
        strict: Whether exactly what the state dicts hold has to be given.

    Raises:
        CheckpointError: Something is lacking, or of another shape or type, or cannot be read.
        InitializationError: The optimizer has no state, is given none, and none can be made.
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
    """What else a state dict of the optimizer says."""
    optimizer = given.get("optimizer") if isinstance(given, Mapping) else None
    if optimizer is None:
        return ()
    if not (isinstance(optimizer, Mapping) and {"state", "param_groups"} <= optimizer.keys()):
        raise CheckpointError(
            "an optimizer's state is loaded as its state_dict() gives it, with state and "
            f"param_groups; got {_keys(optimizer)}"
        )
    groups: Sequence[Mapping[str, Any]] = optimizer["param_groups"]
    expected = [len(group["params"]) for group in state.optimizer.param_groups]
    found = [len(group["params"]) for group in groups]
    if expected != found:
        raise CheckpointError(
            "an optimizer goes on with the groups that it has; got groups of "
            f"{found} parameters instead of {expected}"
        )
    return groups


def _checked(source: Source, entries: Mapping[Path, str], state: State, strict: bool) -> list[Path]:
    """What is to be read, in one order."""
    expected = {path: name for path, name in entries.items() if path[0] in source.sections}
    known = {name for path, name in expected.items() if path in source.kinds}
    missing = [written(path) for path, name in expected.items() if name not in known]
    unexpected = [written(path) for path in source.kinds if path not in expected]
    paths = [path for path in expected if path in source.kinds]
    others = []
    for path in paths:
        tensor, found = state.tensors[entries[path]], source.kinds[path]
        wanted = Kind(tuple(tensor.shape), tensor.dtype)
        if found != wanted:
            others.append(f"{written(path)} is {found} and not {wanted}")
    if others or (strict and (missing or unexpected)):
        raise CheckpointError(
            "state is loaded under the names, and with the shapes and types, that model and "
            f"optimizer have; {_some('missing', missing)}, {_some('unexpected', unexpected)}, "
            f"{_some('different', others)}: build the model in the type of its weights, and pass "
            "strict=False to take what fits by name"
        )
    return paths


def _keys(found: Any) -> str:
    """What somebody gave instead of a state dict."""
    if not isinstance(found, Mapping):
        return type(found).__name__
    return ", ".join(map(str, list(found)[:3])) or "nothing"


def _some(what: str, found: Sequence[str]) -> str:
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{what}: {', '.join(found[:3]) or 'none'}{more}"


class _Files:
    """Weights in files that each process reads."""

    def __init__(self, readers: Mapping[str, Any]) -> None:
        self.sections = ("model",)
        self._readers: Mapping[Path, Any] = {("model", name): r for name, r in readers.items()}
        self.kinds = {path: _kind_in_file(reader) for path, reader in self._readers.items()}

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Sliceable]]:
        return ((path, self._readers[path]) for path in paths)


def _kind_in_file(reader: Any) -> Kind:
    shape = tuple(reader.get_shape())
    return Kind(shape, (reader[:0] if shape else reader[...]).dtype)


class _Tensors:
    """State dicts, of which processes may have different parts."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        is_one = given.keys() <= {"model", "optimizer"} and isinstance(given.get("model"), Mapping)
        if not is_one:
            raise CheckpointError(
                "state is loaded as state_dict() gives it, under model and optimizer, or model "
                f'alone; got {_keys(given)}: pass {{"model": model_state_dict}}'
            )
        self.sections = tuple(given)
        self._mine = {path: t for path, t in _leaves(given) if _has_part(t)}
        mine = {path: Kind(tuple(t.shape), t.dtype) for path, t in self._mine.items()}
        self._shared = dist.is_available() and dist.is_initialized()
        everywhere = [mine]
        if self._shared:
            everywhere = [mine for _ in range(dist.get_world_size())]
            dist.all_gather_object(everywhere, mine)
        self._owners: dict[Path, list[int]] = {}
        self.kinds: dict[Path, Kind] = {}
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
            yield path, present(whole, "this process has what is read, or was sent it")


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
