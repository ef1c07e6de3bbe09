"""The error of a call of a program."""

from __future__ import annotations

from frontends.torch.lower.nodes import Compute


class OperatorError(Exception):
    """A call of a program failed; the runtime, which knows the step, adds the details."""

    def __init__(self, node: Compute, cause: Exception) -> None:
        super().__init__(node.name)
        self.node, self.cause = node, cause
