"""What a captured step of Lightning puts off until it has run: logs, and metrics.

A step that is captured runs without its Python code later, so it cannot log by calling Lightning;
and a metric of torchmetrics looks at values. Their calls are kept, with the tensors that they are
given, which the step returns; when it has run, they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree
from torchmetrics import Metric

from frontends.errors import UnsupportedStepError
from frontends.torch.base.calls import Tensor

_METHODS = ("forward", "update", "compute", "reset")
"""The methods of a metric that are put off."""


@dataclass(frozen=True)
class Awaited:
    """Stands for what a call that is put off will return; it can be logged, and returned."""

    index: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedStepError(
            f"a metric is computed after the step, so that it can be logged or returned; {name} of "
            "its result is used within the step: compute that with tensors of the step"
        )


@dataclass(frozen=True)
class Later:
    """A call that is put off."""

    path: str
    """Of the submodule that has the method."""

    method: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


class PutOff:
    """Keeps calls in the place of a module's `log`, and of methods of its metrics."""

    def __init__(self) -> None:
        self.calls: list[Later] = []
        self._made: dict[tuple[str, str], Callable[..., Any]] = {}

    @contextmanager
    def instead_of(self, module: Any) -> Iterator[None]:
        """Inside, keep calls of a `LightningModule` and its metrics."""
        metrics = [(path, m) for path, m in module.named_modules() if isinstance(m, Metric)]
        places = [("", module, "log"), *((p, m, n) for p, m in metrics for n in _METHODS)]
        kept = [(owner, name, owner.__dict__.get(name)) for _, owner, name in places]
        for path, owner, name in places:
            owner.__dict__[name] = self._keep(path, name)
        try:
            yield
        finally:
            for owner, name, method in kept:
                del owner.__dict__[name]
                if method is not None:
                    owner.__dict__[name] = method

    def _keep(self, path: str, method: str) -> Callable[..., Any]:
        """A function that keeps calls of a method, always the same one, as modules are guarded."""

        def keep(*arguments: Any, **named: Any) -> Awaited:
            given = pytree.tree_map_only(Tensor, Tensor.detach, (arguments, named))
            self.calls.append(Later(path, method, *given))
            return Awaited(len(self.calls) - 1)

        return self._made.setdefault((path, method), keep)


def made_of(output: Any, calls: Sequence[Later], module: Any) -> Any:
    """Make the calls that a step has put off; return its output, with their results in it."""
    results: list[Any] = []

    def known(tree: Any) -> Any:
        return pytree.tree_map_only(Awaited, lambda result: results[result.index], tree)

    for later in calls:
        arguments, named = known((later.arguments, dict(later.named)))
        method = getattr(module.get_submodule(later.path), later.method)
        results.append(method(*arguments, **named))
    return known(output)
