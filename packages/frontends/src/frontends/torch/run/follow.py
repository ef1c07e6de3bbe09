"""Guards the user's model in several processes, which hold the trained weights sharded.

The user's model still has the weights from before training. To gather the trained ones unasked
would need memory, and all processes. So reading the model raises an error that says what to call;
what is written to the model is taken over by the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from frontends.errors import PlanError

Tensor = torch.Tensor


class Followed:
    """Watches reads and writes of a model and an optimizer.

    Args:
        model: The user's model.
        optimizer: Its optimizer.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._is_behind = False
        self._is_allowed = False
        self._versions: dict[str, tuple[Tensor, int]] = {}
        self._written: dict[str, Tensor] = {}
        model.register_forward_pre_hook(self._read)
        model.register_state_dict_pre_hook(self._read)  # type: ignore[no-untyped-call]
        optimizer.register_state_dict_pre_hook(self._read)

    @property
    def is_behind(self) -> bool:
        """Whether the devices have newer values than the model."""
        return self._is_behind

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, reads are allowed and writes are ignored: torch counts those of a capture."""
        before, self._is_allowed = self._is_allowed, True
        self._written |= self._changed()
        try:
            yield
        finally:
            self._is_allowed = before
            self._changed()

    def _read(self, *_: Any, **__: Any) -> None:
        if self._is_behind and not self._is_allowed:
            raise PlanError(
                "trained weights lie sharded on several processes, and the model still has those "
                "from before; it is read here: call step.write_back() in all processes first, or "
                "use step.state_dict()"
            )

    def same(self, state: Mapping[str, Tensor]) -> None:
        """Record that the model now has the same values as the devices."""
        self._is_behind, self._written = False, {}
        self._versions = {name: (t, t._version) for name, t in state.items()}

    def moved(self, state: Mapping[str, Tensor]) -> None:
        """Record the tensors that the state is in from now on; some may be new ones."""
        known = self._versions
        self._versions = {
            name: known[name] if name in known and known[name][0] is t else (t, t._version)
            for name, t in state.items()
        }

    def stepped(self) -> None:
        """Record that a step has updated the state on the devices."""
        self._is_behind = True

    def written(self) -> dict[str, Tensor]:
        """Return the tensors of model and optimizer that the user has written since last asked."""
        written, self._written = self._written | self._changed(), {}
        return written

    def is_written(self, name: str) -> bool:
        """Return whether the user has written to a tensor, and no step has taken it over."""
        known = self._versions.get(name)
        return name in self._written or (known is not None and known[0]._version != known[1])

    def forget(self) -> None:
        """Ignore what was written since the last check."""
        self._changed()

    def _changed(self) -> dict[str, Tensor]:
        changed = {n: t for n, (t, version) in self._versions.items() if t._version != version}
        self._versions |= {name: (tensor, tensor._version) for name, tensor in changed.items()}
        return changed
