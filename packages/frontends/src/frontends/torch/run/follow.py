"""A model in several processes, whose trained weights lie sharded on them.

Reading the user's model there would see the weights that it began with, and gathering them unasked
would take memory and all processes. So reading says what to call instead; what is written to the
model is taken over by the next step.
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
        model: The user's.
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

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Reads inside are meant, and writes are not, as those of a capture, which torch counts."""
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
                "trained weights lie sharded on several processes, and the model has those of "
                "before; it is read here: call step.write_back() in all processes first, or take "
                "step.state_dict()"
            )

    def same(self, state: Mapping[str, Tensor]) -> None:
        """The model has now what the devices have."""
        self._is_behind, self._written = False, {}
        self._versions = {name: (t, t._version) for name, t in state.items()}

    def moved(self, state: Mapping[str, Tensor]) -> None:
        """The state is in these tensors from now on, some of which may be others."""
        known = self._versions
        self._versions = {
            name: known[name] if name in known and known[name][0] is t else (t, t._version)
            for name, t in state.items()
        }

    def stepped(self) -> None:
        """A step has trained what lies on the devices."""
        self._is_behind = True

    def written(self) -> dict[str, Tensor]:
        """What somebody has written to the model or the optimizer since."""
        found, self._written = self._written | self._changed(), {}
        return found

    def is_written(self, name: str) -> bool:
        """Whether somebody has written to a tensor since, and no step has seen it."""
        known = self._versions.get(name)
        return name in self._written or (known is not None and known[0]._version != known[1])

    def forget(self) -> None:
        """What was written since the last look is not meant."""
        self._changed()

    def _changed(self) -> dict[str, Tensor]:
        found = {n: t for n, (t, version) in self._versions.items() if t._version != version}
        self._versions |= {name: (tensor, tensor._version) for name, tensor in found.items()}
        return found
