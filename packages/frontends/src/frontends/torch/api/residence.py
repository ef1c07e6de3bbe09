"""Where the state of a model and an optimizer is between the calls that use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from frontends.torch.api.variant import Variant
from frontends.torch.run.follow import Followed
from frontends.torch.run.shared import SharedState


@dataclass
class Residence:
    """What a step and the functions that follow it have in common."""

    shared: SharedState = field(default_factory=SharedState)
    """Where state is in a run of one process."""

    followed: Followed | None = None
    """Watches the user's model in a run of several processes."""

    last: Variant | None = None
    """The variant of the step's last call, whose runtime has the state."""
