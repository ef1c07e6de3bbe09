"""State that stays in the user's own tensors, where all devices are virtual ones of one process.

Devices read parts of these tensors, and a step writes its new values there when all of them have
been computed. So whoever looks at the model sees it trained, and what is written to it is what the
next step goes on with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from frontends.torch.base.compat.values import place_of

Tensor = torch.Tensor


class SharedState:
    """The tensors that hold a step's state; those on the meta device get memory with values."""

    def __init__(self) -> None:
        self._users: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}
        """Where the values are, by name."""

        self.missing: frozenset[str] = frozenset()
        """What has no values yet."""

        self._memories: set[int] = set()
        self._state: Mapping[str, Tensor] | None = None

    def follow(self, state: Mapping[str, Tensor]) -> None:
        """From now on the state is in these tensors of the user's; what it was in before, stays.

        Args:
            state: By name.
        """
        if state is self._state:
            return
        self._state = state
        for name, user in state.items():
            if self._users.get(name) is not user:
                self._users[name] = user
                self.tensors[name] = user.detach()
                if user.is_meta:
                    self.missing |= {name}
        for name in self._users.keys() - state.keys():
            del self._users[name], self.tensors[name]
            self.missing -= {name}
        self.look()

    def make(self, names: Collection[str]) -> None:
        """Give memory to state that is about to get values."""
        for name in self.missing.intersection(names):
            self.tensors[name] = torch.empty_like(self._users[name], device="cpu")
        self.missing = self.missing.difference(names)

    def place(self, name: str) -> int:
        """Where a tensor of the state has its values; 0 where it has none."""
        return 0 if name in self.missing else self.tensors[name].data_ptr()

    def look(self) -> None:
        """See where the values are now: the user may have put them elsewhere."""
        for name, user in self._users.items():
            if not user.is_meta and user.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = user.detach()
        there = (t for n, t in self.tensors.items() if n not in self.missing)
        self._memories = {place_of(tensor)[0] for tensor in there}

    def apart(self, tensor: Tensor) -> Tensor:
        """A tensor that does not change when the state is written."""
        is_part = place_of(tensor)[0] in self._memories
        return tensor.clone() if is_part else tensor


def write(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first; what several devices share is copied once."""
    done: set[int] = set()
    for old, new in pairs:
        if id(old) not in done:
            done.add(id(old))
            old.copy_(new)
