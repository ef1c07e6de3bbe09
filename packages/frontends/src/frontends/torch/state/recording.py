"""What the construction of a model computes: recorded without values, made tensor by tensor.

A constructor draws random numbers from a generator that each draw advances, so a tensor's numbers
follow from all draws before it. Recorded are the operators that write, on which memory, and the
state of the generator that each draw begins with. A tensor is then made by the operators that its
memory needs, in their order; a draw that nobody here needs is made all the same, into memory that
goes at once, since only so does its generator advance as on one device.

torchdistX's `deferred_init` records in the same way; it replays all of a model in one process.
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
"""Operators that write to `self` and do not read it."""

_TOKENS = 0x5EED_0000_0000_0000
"""Seeds from here on stand for the state after a draw while there are no values [chosen]."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies."""

    memory: int
    """The number of its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Draw:
    """What a draw of random numbers begins with."""

    generator: torch.Generator
    state: Tensor | int
    """Of the generator; or the number of the operator that left it so."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """A call that writes; tensors in its arguments are places."""

    function: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    reads: frozenset[int]
    """Memories whose values it needs."""

    writes: frozenset[int]
    replaces: frozenset[int]
    """Those of which it leaves nothing as it was."""

    makes: tuple[Place | None, ...]
    """Of its results, those that lie in new memory."""

    draw: _Draw | None


class Recording:
    """Operators and the memories that they work on; `record` makes one."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = {}
        """By memory, the numbers of the operators that write to it, rising."""

        self._draws: list[int] = []
        self._n_bytes: list[int] = []
        self._given: dict[int, Storage] = {}
        """Memories that were there before, with their values."""

        self._memory_of: dict[int, int] = {}
        self._alive: list[Storage] = []  # so that no other storage gets the address of one
        self._generators: list[_Generator] = [_Generator(torch.default_generator)]
        self._drawn: dict[bytes, int] = {}
        self._after: dict[int, Tensor] = {}
        """By the number of a draw, the state that it leaves its generator in."""

    def find(self, tensor: Tensor) -> Place:
        """Where any tensor lies while it is recorded, also one that was there before."""
        return self.place(tensor.detach())

    def place(self, tensor: Tensor) -> Place:
        """Where a stand-in lies.

        Raises:
            InitializationError: It is sparse, or of another kind that has no memory of its own.
        """
        if tensor.layout is not torch.strided:
            raise InitializationError(
                "what is initialised shard by shard lies in memory as a dense tensor; got one of "
                f"layout {tensor.layout} at {origins.calling_line()}"
            )
        storage = tensor.untyped_storage()
        memory = self._memory_of.get(storage._cdata)
        if memory is None:
            memory = self._memory_of[storage._cdata] = len(self._alive)
            self._alive.append(storage)
            self._n_bytes.append(storage.nbytes())
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        offset = int(tensor.storage_offset())
        return Place(memory, shape, stride, offset, tensor.dtype, tensor.device)

    def reads(self, place: Place) -> frozenset[int]:
        """The memories that a tensor's values come from, its own among them."""
        needed = self._needed([place.memory], len(self._operations))
        return frozenset({place.memory}.union(*(self._operations[i].reads for i in needed)))

    def make(
        self,
        wanted: Mapping[str, Place],
        is_mine: Callable[[str], bool],
        take: Callable[[str, Tensor], None],
    ) -> None:
        """Make tensors one after the other.

        If random numbers are among them, all that were recorded are drawn, and the generators are
        left as the construction leaves them on one device; else they are not touched.

        Args:
            wanted: The same in all processes.
            is_mine: Whether this process needs one of them.
            take: Is given each that is needed here, whole; it keeps its part and lets it go.
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
        """Take values that were there before; they are copied wherever they are needed."""
        self._given[self.place(stand_in).memory] = real.untyped_storage()

    def values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What stand-ins hold now; advances no generator."""
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
            given = [self.place(leaf) for leaf in leaves]
            memories = {place.memory for place in given}
            if is_written:
                writes |= memories
            if is_written and name in _OVERWRITES and key == "self":
                if self._is_whole(given[0]):
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
        made = {place.memory for place in makes if place is not None}
        if writes or made or draw is not None:
            number = len(self._operations)
            writes |= made
            replaced = frozenset((replaces | made) - reads)
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
        """Let the generators be as they were before the recording."""
        for one in self._generators:
            one.end = self._known(one.generator.get_state())
            one.generator.set_state(one.begin)

    def _begin(self, generator: torch.Generator | None) -> _Draw:
        generator = torch.default_generator if generator is None else generator
        with unwatched():
            if all(one.generator is not generator for one in self._generators):
                self._generators.append(_Generator(generator))
            return _Draw(generator, self._known(generator.get_state()))

    def _end(self, draw: _Draw, number: int, places: Sequence[Place | None]) -> None:
        devices = {draw.generator.device, *(place.device for place in places if place)}
        if devices != {torch.device("cpu")}:
            raise InitializationError(
                "weights are initialised by the CPU's generators, and then go where they are kept; "
                f"got a draw on {', '.join(sorted(map(str, devices)))} at "
                f"{origins.calling_line()}: build the model on the CPU; files of weights, as "
                "from_pretrained takes, are read by load_state_dict"
            )
        with unwatched():
            token = torch.Generator().manual_seed(_TOKENS + number).get_state()
            self._drawn[token.numpy().tobytes()] = number
            draw.generator.set_state(token)
        self._draws.append(number)

    def _known(self, state: Tensor) -> Tensor | int:
        """The draw that leaves a generator in this state; one that the user set stays itself."""
        return self._drawn.get(state.numpy().tobytes(), state)

    def _is_whole(self, place: Place) -> bool:
        """Whether a tensor is all of its memory."""
        n = 1 + sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True))
        is_dense = n == torch.Size(place.shape).numel()
        return is_dense and n * place.dtype.itemsize == self._n_bytes[place.memory]

    def _needed(self, memories: Iterable[int], end: int) -> list[int]:
        """The operators before `end` that some memories' values follow from, in their order."""
        found: set[int] = set()
        todo = [(memory, end) for memory in memories]
        while todo:
            memory, before = todo.pop()
            writers = self._writers.get(memory, [])
            for number in reversed(writers[: bisect.bisect_left(writers, before)]):
                operation = self._operations[number]
                if number not in found:
                    found.add(number)
                    todo += [(read, number) for read in operation.reads if read != memory]
                if memory in operation.replaces:
                    break
        return sorted(found)

    def _run(self, numbers: Sequence[int], kept: Iterable[int]) -> dict[int, Storage]:
        """Run some operators, and hold the memories that are `kept`."""
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
            Place, lambda place: self._tensor(place, held), (operation.args, operation.named)
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

    def _tensor(self, place: Place, held: dict[int, Storage]) -> Tensor:
        """A tensor at a place; what no operator has written yet is zeros."""
        if place.memory not in held:
            given = self._given.get(place.memory)
            n_bytes = self._n_bytes[place.memory]
            new = torch.zeros(n_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
            held[place.memory] = new if given is None else new.copy_(given)
        empty = torch.empty(0, dtype=place.dtype, device="cpu")
        return empty.set_(held[place.memory], place.offset, place.shape, place.stride)

    def _state(self, state: Tensor | int) -> Tensor:
        return self._state_after(state) if isinstance(state, int) else state

    def _state_after(self, number: int) -> Tensor:
        """The state that a draw leaves; runs those before it that have not run yet."""
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
    """Let what is called meanwhile work on stand-ins without memory, and record what it computes.

    A number that Python asks for, as by `item()`, is computed at once. Random generators are
    afterwards as before.

    Raises:
        InitializationError: A shape follows from values, or values leave PyTorch, as by `numpy()`.
    """
    recording = Recording()
    try:
        with watched_by(recording):
            yield recording
    except (*DATA_DEPENDENT, RuntimeError) as error:
        if isinstance(error, InitializationError):
            raise
        raise InitializationError(
            "a model is initialised shard by shard from what its construction does without "
            f"values; this one fails so, at {origins.user_line(error)}: {error}"
        ) from error
    finally:
        recording.finish()


def _memories(operation: _Operation) -> set[int]:
    """All that a call touches, also what it only has the shape of."""
    leaves = pytree.tree_leaves((operation.args, operation.named))
    return {p.memory for p in (*leaves, *operation.makes) if isinstance(p, Place)}


def _arguments(
    function: Any, args: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[tuple[bool, str, list[Tensor]]]:
    """The tensors of each argument, its name, and whether it is written to."""
    for i, argument in enumerate(function._schema.arguments):
        value = args[i] if i < len(args) else named.get(argument.name)
        leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
        if leaves:
            alias = argument.alias_info
            yield alias is not None and alias.is_write, argument.name, leaves
