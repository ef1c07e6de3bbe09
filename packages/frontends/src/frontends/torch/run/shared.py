"""State that stays in the user's own tensors, when all devices are virtual ones of one process.

Devices read parts of these tensors, and a step writes the new values to them when all have been
computed. So the user's model is always up to date, and the next step uses what the user writes to
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from frontends.torch.base.compat.values import place_of

Tensor = torch.Tensor


class SharedState:
    """The tensors that hold a step's state; for meta tensors, new ones when values are set."""

    def __init__(self) -> None:
        self._users: dict[str, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}
        """The tensors that hold the values, by name."""

        self.missing: frozenset[str] = frozenset()
        """Names of state that has no values yet."""

        self._memories: set[int] = set()
        self._state: Mapping[str, Tensor] | None = None

    def follow(self, state: Mapping[str, Tensor]) -> None:
        """Let the state be in these tensors of the user from now on.

        Tensors that hold values of meta tensors are kept.

        Args:
            state: The user's tensors, by name.
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
        """Allocate memory for state that is about to get values."""
        for name in self.missing.intersection(names):
            self.tensors[name] = torch.empty_like(self._users[name], device="cpu")
        self.missing = self.missing.difference(names)

    def place(self, name: str) -> int:
        """Return the address of a tensor of the state; 0 if it has no values."""
        return 0 if name in self.missing else self.tensors[name].data_ptr()

    def look(self) -> None:
        """Find the values again, as the user may have set `.data` of a tensor."""
        for name, user in self._users.items():
            if not user.is_meta and user.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = user.detach()
        with_values = (t for n, t in self.tensors.items() if n not in self.missing)
        self._memories = {place_of(tensor)[0] for tensor in with_values}

    def apart(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a copy if it would change when the state is written."""
        is_part = place_of(tensor)[0] in self._memories
        return tensor.clone() if is_part else tensor


def write(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first; one that devices share is copied once."""
    done: set[int] = set()
    for old, new in pairs:
        if old is not new and id(old) not in done:
            done.add(id(old))
            old.copy_(new)
