"""The state of a step between calls, as a process keeps it: in the layouts of a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from frontends.answer.plan import Plan
from frontends.base.present import present
from frontends.errors import PlanError
from frontends.program.instructions import Key
from frontends.program.state_locations import find_placed
from frontends.torch.base.calls import Tensor
from frontends.torch.run.dtensors import DTensors
from frontends.torch.run.engine import Sliceable, TorchEngine
from frontends.torch.run.lockstep import Shards
from frontends.torch.run.shared import SharedState, write
from frontends.torch.run.team import Team
from frontends.torch.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Parts:
    """Values of some of a step's state, in the form in which a process keeps them."""

    shards: dict[Key, Shards] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that each process keeps whole, by name."""

    names: set[str] = field(default_factory=set)
    """Names of all tensors that have these values, here or in other processes."""


class KeptState:
    """The state of a step in this process.

    Args:
        trace: The step.
        plan: The plan, with the layouts.
        engine: The engine of this process.
        team: All processes, if there are several.
        updated: Names of the state that the step updates.
        state: Whole tensors to begin with, by name; they are copied. Those on the meta device get
            values later.
        shared: Where the state stays if it is not copied from `state`.
    """

    def __init__(
        self,
        trace: Trace,
        plan: Plan,
        engine: TorchEngine,
        team: Team | None,
        updated: Collection[str],
        state: Mapping[str, Tensor],
        shared: SharedState | None,
    ) -> None:
        self.plan, self.engine, self._team = plan, engine, team
        other = {a.name for a in trace.arguments if not a.is_batch}
        self._places = find_placed(plan, trace.constants, other)
        self._placers = {
            key: engine.placer(key[0], key[1].value, key[1].spec)
            for key in self._places
            if engine.is_local(key[0])
        }
        """For each value on devices of this process, a function from the whole to the shards."""

        self._kept: dict[Key, Shards] = {}
        self._released: tuple[Key, ...] = ()
        """The old state that the last step has released."""

        self.whole: dict[str, Tensor] = {}
        """State that each process has whole, by name: no stage reads it, or early values do."""

        early = trace.read_early.difference(updated)
        placed = {key[1].value for key in self._places}
        self._is_whole = {name: name in early or name not in placed for name in state}
        self._missing = frozenset(state)

        self._shared: SharedState | None = None
        self._places_seen: dict[str, int] = {}
        self.load(trace.constants if shared is not None else {**trace.constants, **state})
        self._shared = shared

    @property
    def missing(self) -> frozenset[str]:
        """Names of state that has no values yet, in any process."""
        return self._missing if self._shared is None else self._shared.missing

    @property
    def state_names(self) -> frozenset[str]:
        """Names of all state."""
        return frozenset(self._is_whole)

    def has(self, name: str) -> bool:
        """Return whether this process keeps some of a tensor of the state."""
        return self._is_whole[name] or any(key[1].value == name for key in self._placers)

    def load(self, state: Mapping[str, Sliceable]) -> None:
        """Set the values of some of the state.

        Args:
            state: Whole tensors, or objects that read parts of them, by name; they are copied.
        """
        parts = Parts()
        for name, whole in state.items():
            self.cut(name, whole, parts)
        self.take(parts)

    def cut(self, name: str, whole: Sliceable, parts: Parts) -> None:
        """Add copies of what this process keeps of a tensor to `parts`."""
        if not (isinstance(whole, Tensor) and whole.is_meta):
            parts.names.add(name)
        for key, place in self._placers.items():
            if key[1].value == name:
                copies: dict[int, Tensor] = {}
                parts.shards[key] = [copies.setdefault(id(t), _copy(t)) for t in place(whole)]
        if self._is_whole.get(name):
            parts.whole[name] = _copy(whole[...])

    def take(self, parts: Parts) -> None:
        """Set the values of some of the state to those that `cut` or `empty` has collected."""
        if self._shared is not None:
            self._shared.make(parts.names)
            self._look_again(self._shared)
            for key, shards in parts.shards.items():
                if key[1].value in self._is_whole:
                    write(zip(self._kept[key], shards, strict=True))
            write((self._shared.tensors[name], whole) for name, whole in parts.whole.items())
            return
        self._kept.update(parts.shards)
        self.whole.update(parts.whole)
        self._missing = self._missing - parts.names

    def take_from(self, other: KeptState, names: Collection[str]) -> None:
        """Take over state from another one; all processes have to call it together.

        Tensors with the same layout in both are passed on; the others are gathered one by one.

        Args:
            other: The same state in the layouts of another plan.
            names: The names of the state to take over.
        """
        alike = {
            name
            for name in names
            if self._homes.get(name) == other._homes.get(name)
            and self._is_whole[name] == other._is_whole[name]
        }
        for key in self._placers:
            if key[1].value in alike:
                self._kept[key] = other._kept[key]
        self.whole.update((name, other.whole[name]) for name in alike if name in other.whole)
        for name in names:
            if name not in alike:
                parts = Parts()
                self.cut(name, other.whole_of(name), parts)
                self.take(parts)
        self._missing = other.missing

    def let_go(self) -> None:
        """Drop all references to the state, which another one keeps and may replace."""
        self._kept = {k: s for k, s in self._kept.items() if k[1].value not in self._is_whole}
        self.whole.clear()
        self._missing = self.state_names

    @cached_property
    def _homes(self) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Key]]]:
        """By name, where a tensor is kept, in all processes."""
        meshes = [stage.mesh for stage in self.plan.stages]
        homes: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Key]]] = {}
        for key in self._places:
            mesh = meshes[key[0]]
            homes.setdefault(key[1].value, []).append((tuple(mesh.device_ids), mesh.shape, key))
        return homes

    def whole_of(self, name: str) -> Tensor:
        """Return a whole tensor of the state; with several processes, all have to call it."""
        if name in self.whole:
            return self.whole[name]
        key = next(key for key in self._places if key[1].value == name)
        shards = self._kept.get(key)
        if self._team is not None:
            return self._team.whole(key, shards)
        local = present(shards, "all devices are in this process")
        return self.engine.whole(key[0], key[1], local)

    def _look_again(self, shared: SharedState) -> None:
        """Find the shards of shared state again, as the user may have moved its memory."""
        shared.look()
        for name in self._is_whole:
            place = shared.place(name)
            if self._places_seen.get(name) == place:
                continue
            self._places_seen[name] = place
            tensor = shared.tensors[name]
            for key, shards_of in self._placers.items():
                if key[1].value == name:
                    self._kept[key] = shards_of(tensor)
            if self._is_whole[name]:
                self.whole[name] = tensor

    @cached_property
    def dtensors(self) -> DTensors:
        """Converts shards to DTensors; all processes have to read this property together."""
        return DTensors(self.plan, self.engine.graph)

    @property
    def shards(self) -> dict[Key, Shards]:
        """This process's shards of the state that is not whole in each process."""
        return {k: s for k, s in self._kept.items() if self._is_whole.get(k[1].value) is False}

    def empty(self) -> Parts:
        """Return uninitialized tensors for all that this process keeps of the state."""
        parts = Parts(names=set(self._is_whole))
        for key in self._placers:
            if self._is_whole.get(key[1].value) is False:
                parts.shards[key] = self.engine.empty(key[0], key[1])
        for name, is_whole in self._is_whole.items():
            if is_whole and self._shared is not None:
                parts.whole[name] = torch.empty_like(self._shared.tensors[name], device="cpu")
            elif is_whole:
                parts.whole[name] = torch.empty_like(self.whole[name], device="cpu")
        return parts

    def whole_state(self) -> dict[str, Tensor]:
        """Return all state as whole tensors, by name; with several processes, all have to call it.

        Raises:
            PlanError: Some state has no values yet, or a step failed while it updated the state.
        """
        self.check_there()
        if self._shared is not None:
            return {name: t.clone() for name, t in self._shared.tensors.items()}
        state = {name: tensor.clone() for name, tensor in self.whole.items()}
        for key in self._places:
            name = key[1].value
            if name not in state and name in self._is_whole:
                state[name] = self.whole_of(name).clone()
        return state

    def value(self, name: str) -> Tensor:
        """Return a tensor of the state that a device of this process has whole."""
        if self._shared is not None:
            return self._shared.tensors[name]
        if name in self.whole:
            return self.whole[name]
        return next(shards[0] for (_, slot, _), shards in self._kept.items() if slot.value == name)

    def check_there(self) -> None:
        """Check that all state has values.

        Raises:
            PlanError: Some has none, or lost them in a step that failed.
        """
        if self._shared is not None:
            self._look_again(self._shared)
        lost = [key[1].value for key in self._released if key not in self._kept]
        if lost:
            raise PlanError(
                "a step goes on from a complete state; the last one failed while it updated "
                f"{lost[0]} and {len(lost) - 1} others: load it, by load_state_dict or restore"
            )
        if self.missing:
            raise PlanError(
                "a step runs on weights that have values; "
                f"{min(self.missing)} and {len(self.missing) - 1} others are on the meta device: "
                "make them by init, or load them by load_state_dict or restore"
            )

    def _release(self, keys: Iterable[Key]) -> None:
        """Drop references to old state, so that a step can free it before it sets the new state."""
        self._released = tuple(keys)
        for key in self._released:
            del self._kept[key]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
