"""Records how a model is constructed, without values, and computes its tensors one by one.

A constructor draws random numbers from a generator that each draw advances, so a tensor's values
depend on all draws before it. The recording has the operators that write, the memory that they
write to, and the state of the generator before each draw. To compute a tensor, the operators that
its memory depends on are run in their order. A draw that this process does not need is made, too,
into memory that is freed at once: only so does the generator advance as on one device.

torchdistX's `deferred_init` records in the same way; it replays the whole model in one process.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frontends.base.present import present
from frontends.errors import InitializationError
from frontends.torch.base import origins
from frontends.torch.base.compat.values import DATA_DEPENDENT, unwatched
from frontends.torch.base.compat.watched import watched_by

Tensor = torch.Tensor
Storage = torch.UntypedStorage

_OVERWRITES = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
    | {"log_normal_", "cauchy_", "geometric_"}
)
"""Operators that write to `self` without reading it."""

_TOKENS = 0x5EED_0000_0000_0000
"""Seeds from here on represent the state after a draw while there are no values [chosen]."""


@dataclass(frozen=True, slots=True)
class StorageView:
    """Where a tensor is in memory."""

    memory: int
    """The number of its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Draw:
    """The generator and its state before a draw of random numbers."""

    generator: torch.Generator
    state: Tensor | int
    """The state; or the number of the operator whose draw leaves the generator in this state."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """A call that writes; tensors in its arguments are replaced by their places."""

    function: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    reads: frozenset[int]
    """Memories that it reads."""

    writes: frozenset[int]
    """Memories that it writes."""

    replaces: frozenset[int]
    """Memories that it overwrites completely without reading them."""

    makes: tuple[StorageView | None, ...]
    """For each result its place, if it is in new memory."""

    draw: _Draw | None


class Recording:
    """Operators and the memories that they use, as `record` collects them."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = {}
        """By memory, the numbers of the operators that write to it, ascending."""

        self._draws: list[int] = []
        self._n_bytes: list[int] = []
        self._given: dict[int, Storage] = {}
        """By memory, storages that existed before the recording, with their values."""

        self._memory_of: dict[int, int] = {}
        self._alive: list[Storage] = []  # kept, so that no other storage gets the same address
        self._generators: list[_Generator] = [_Generator(torch.default_generator)]
        self._drawn: dict[bytes, int] = {}
        self._after: dict[int, Tensor] = {}
        """By the number of a draw, the state in which it leaves its generator."""

    def find(self, tensor: Tensor) -> StorageView:
        """Return the place of any tensor during the recording, even one that existed before."""
        return self.place(tensor.detach())

    def place(self, tensor: Tensor) -> StorageView:
        """Return the place of a stand-in.

        Raises:
            InitializationError: It is sparse, or of another kind without memory of its own.
        """
        if tensor.layout is not torch.strided:
            raise InitializationError(
                "a tensor that is initialised shard by shard lies in memory as a dense tensor; got "
                f"one of layout {tensor.layout} at {origins.calling_line()}"
            )
        storage = tensor.untyped_storage()
        memory = self._memory_of.get(storage._cdata)
        if memory is None:
            memory = self._memory_of[storage._cdata] = len(self._alive)
            self._alive.append(storage)
            self._n_bytes.append(storage.nbytes())
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        offset = int(tensor.storage_offset())
        return StorageView(memory, shape, stride, offset, tensor.dtype, tensor.device)

    def reads(self, place: StorageView) -> frozenset[int]:
        """Return the memories that a tensor's values depend on, including its own."""
        needed = self._needed([place.memory], len(self._operations))
        return frozenset({place.memory}.union(*(self._operations[i].reads for i in needed)))

    def make(
        self,
        wanted: Mapping[str, StorageView],
        is_mine: Callable[[str], bool],
        take: Callable[[str, Tensor], None],
    ) -> None:
        """Compute tensors one by one.

        If any of them depends on random numbers, all recorded draws are made, and the generators
        are left in the state after the construction on one device; else they are not touched.

        Args:
            wanted: The places of the tensors, by name, the same in all processes.
            is_mine: Returns whether this process needs a tensor.
            take: Called with each tensor that this process needs, whole; it copies the process's
                part, and keeps no reference.
        """
        end = len(self._operations)
        operators = {name: self._needed([place.memory], end) for name, place in wanted.items()}
        at: dict[int, list[str]] = {}
        for name, needed in operators.items():
            draws = [i for i in needed if self._operations[i].draw is not None]
            at.setdefault(max(draws, default=-1), []).append(name)

        def make_all(names: Iterable[str]) -> None:
            for name in filter(is_mine, names):
                place = wanted[name]
                held = self._run(operators[name], [place.memory])
                tensor = self._tensor(place, held)
                held.clear()
                take(name, tensor)
                del tensor

        make_all(at.pop(-1, []))
        if not at:
            return
        for draw in self._draws:
            make_all(at.get(draw, []))
            self._state_after(draw)
        for one in self._generators:
            one.generator.set_state(self._state(one.end))

    def given(self, stand_in: Tensor, real: Tensor) -> None:
        """Register values from before the recording; they are copied wherever they are needed."""
        self._given[self.place(stand_in).memory] = real.untyped_storage()

    def values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the current values of stand-ins, without advancing a generator."""
        saved = [(one.generator, one.generator.get_state()) for one in self._generators]
        places = [self.place(tensor) for tensor in tensors]
        memories = [place.memory for place in places]
        held = self._run(self._needed(memories, len(self._operations)), memories)
        for generator, state in saved:
            generator.set_state(state)
        return [self._tensor(place, held) for place in places]

    def call(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call an operator on stand-ins, and record it if it writes."""
        name = function._schema.name.removeprefix("aten::")
        draw = None
        if torch.Tag.nondeterministic_seeded in function.tags:
            draw = self._begin(named.get("generator"))
        args_, named_ = pytree.tree_map_only(Tensor, self.place, (args, dict(named)))
        reads: set[int] = set()
        writes: set[int] = set()
        replaces: set[int] = set()
        for is_written, key, leaves in _arguments(function, args, named):
            argument_places = [self.place(leaf) for leaf in leaves]
            memories = {place.memory for place in argument_places}
            if is_written:
                writes |= memories
            if is_written and name in _OVERWRITES and key == "self":
                if self._is_whole(argument_places[0]):
                    replaces |= memories
            elif not name.startswith("new_") and not name.endswith("_like"):
                reads |= memories
        n_known = len(self._alive)
        result = function(*args, **{**named, "generator": None} if "generator" in named else named)
        places = [
            self.place(leaf) if isinstance(leaf, Tensor) else None
            for leaf in pytree.tree_leaves(result)
        ]
        is_empty = name.startswith(("empty", "new_empty"))
        makes = tuple(p if p and p.memory >= n_known and not is_empty else None for p in places)
        new = {place.memory for place in makes if place is not None}
        if writes or new or draw is not None:
            number = len(self._operations)
            writes |= new
            replaced = frozenset((replaces | new) - reads)
            self._operations.append(
                _Operation(
                    function,
                    args_,
                    named_,
                    frozenset(reads),
                    frozenset(writes),
                    replaced,
                    makes,
                    draw,
                )
            )
            for memory in writes:
                self._writers.setdefault(memory, []).append(number)
            if draw is not None:
                self._end(draw, number, places)
        return result

    def finish(self) -> None:
        """End the recording; reset the generators to their states before it."""
        for one in self._generators:
            one.end = self._known(one.generator.get_state())
            one.generator.set_state(one.begin)

    def _begin(self, generator: torch.Generator | None) -> _Draw:
        generator = torch.default_generator if generator is None else generator
        with unwatched():
            if all(one.generator is not generator for one in self._generators):
                self._generators.append(_Generator(generator))
            return _Draw(generator, self._known(generator.get_state()))

    def _end(self, draw: _Draw, number: int, places: Sequence[StorageView | None]) -> None:
        devices = {draw.generator.device, *(place.device for place in places if place)}
        if devices != {torch.device("cpu")}:
            raise InitializationError(
                "weights are initialised by the CPU's generators, and then moved to where they are "
                f"kept; got a draw on {', '.join(sorted(map(str, devices)))} at "
                f"{origins.calling_line()}: build the model on the CPU; files of weights, as "
                "from_pretrained reads them, are loaded by load_state_dict"
            )
        with unwatched():
            token = torch.Generator().manual_seed(_TOKENS + number).get_state()
            self._drawn[token.numpy().tobytes()] = number
            draw.generator.set_state(token)
        self._draws.append(number)

    def _known(self, state: Tensor) -> Tensor | int:
        """Return the draw that leaves a generator in this state; the state itself if none does."""
        return self._drawn.get(state.numpy().tobytes(), state)

    def _is_whole(self, place: StorageView) -> bool:
        """Return whether a tensor covers its whole memory."""
        n = 1 + sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True))
        is_dense = n == torch.Size(place.shape).numel()
        return is_dense and n * place.dtype.itemsize == self._n_bytes[place.memory]

    def _needed(self, memories: Iterable[int], end: int) -> list[int]:
        """Return the operators before `end` that some memories' values depend on, in order."""
        needed: set[int] = set()
        todo = [(memory, end) for memory in memories]
        while todo:
            memory, before = todo.pop()
            writers = self._writers.get(memory, [])
            for number in reversed(writers[: bisect.bisect_left(writers, before)]):
                operation = self._operations[number]
                if number not in needed:
                    needed.add(number)
                    todo += [(read, number) for read in operation.reads if read != memory]
                if memory in operation.replaces:
                    break
        return sorted(needed)

    def _run(self, numbers: Sequence[int], kept: Iterable[int]) -> dict[int, Storage]:
        """Run some operators; return the memories in `kept`, and free all others."""
        held: dict[int, Storage] = {}
        last: dict[int, int] = {}
        for number in numbers:
            operation = self._operations[number]
            last |= dict.fromkeys(_memories(operation), number)
        last |= dict.fromkeys(kept, len(self._operations))
        for number in numbers:
            self._call(number, held)
            for memory in _memories(self._operations[number]):
                if last[memory] == number:
                    held.pop(memory, None)
        return held

    @torch.no_grad()
    def _call(self, number: int, held: dict[int, Storage]) -> None:
        operation = self._operations[number]
        args, named = pytree.tree_map_only(
            StorageView, lambda place: self._tensor(place, held), (operation.args, operation.named)
        )
        if operation.draw is not None:
            operation.draw.generator.set_state(self._state(operation.draw.state))
        result = operation.function(*args, **named)
        if operation.draw is not None:
            self._after[number] = operation.draw.generator.get_state()
        for place, leaf in zip(operation.makes, pytree.tree_leaves(result), strict=True):
            if place is None:
                continue
            if (leaf.stride(), leaf.storage_offset()) == (place.stride, place.offset):
                held[place.memory] = leaf.untyped_storage()
            else:
                self._tensor(place, held).copy_(leaf)

    def _tensor(self, place: StorageView, held: dict[int, Storage]) -> Tensor:
        """Return the tensor at a place; memory that no operator has written yet is zeros."""
        if place.memory not in held:
            known = self._given.get(place.memory)
            n_bytes = self._n_bytes[place.memory]
            new = torch.zeros(n_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
            held[place.memory] = new if known is None else new.copy_(known)
        empty = torch.empty(0, dtype=place.dtype, device="cpu")
        return empty.set_(held[place.memory], place.offset, place.shape, place.stride)

    def _state(self, state: Tensor | int) -> Tensor:
        return self._state_after(state) if isinstance(state, int) else state

    def _state_after(self, number: int) -> Tensor:
        """Return the state after a draw; first make the draws before it that were not made yet."""
        todo: list[int] = []
        at: Tensor | int = number
        while isinstance(at, int) and at not in self._after:
            todo.append(at)
            at = present(self._operations[at].draw, "a state is left by a draw").state
        for one in reversed(todo):
            operation = self._operations[one]
            self._run([*self._needed(operation.reads, one), one], [])
        return self._after[number]


class _Generator:
    """A generator and its states around a recording."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.begin = generator.get_state()
        self.end: Tensor | int = self.begin


@contextmanager
def record() -> Iterator[Recording]:
    """Inside, operators run on stand-ins without memory, and are recorded.

    A number that Python needs, as by `item()`, is computed at once. Afterwards, random generators
    are in the same states as before.

    Raises:
        InitializationError: A shape depends on values, or values leave PyTorch, as by `numpy()`.
    """
    recording = Recording()
    try:
        with watched_by(recording):
            yield recording
    except (*DATA_DEPENDENT, RuntimeError) as error:
        if isinstance(error, InitializationError):
            raise
        raise InitializationError(
            "a model is initialised shard by shard from a recording of its construction, which "
            f"runs without values; this one fails then, at {origins.user_line(error)}: {error}"
        ) from error
    finally:
        recording.finish()


def _memories(operation: _Operation) -> set[int]:
    """Return all memories that a call has as arguments or results, even if it reads no values."""
    leaves = pytree.tree_leaves((operation.args, operation.named))
    return {p.memory for p in (*leaves, *operation.makes) if isinstance(p, StorageView)}


def _arguments(
    function: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[tuple[bool, str, list[Tensor]]]:
    """Yield for each argument with tensors whether it is written, its name, and the tensors."""
    for i, argument in enumerate(function._schema.arguments):
        value = args[i] if i < len(args) else named.get(argument.name)
        leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
        if leaves:
            alias = argument.alias_info
            yield alias is not None and alias.is_write, argument.name, leaves
