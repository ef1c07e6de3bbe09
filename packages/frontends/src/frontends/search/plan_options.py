"""What a plan is searched by: one value, which all that plan take, and the command line makes.

`parallelize(step, microbatches=4)` has the fields of `PlanOptions` as keywords. `PlanKeywords` says
so to editors and type checkers, `takes_plan_options` to `help()`; a test compares the three.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, cast, get_args

from autoshard import MemoryRule
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.errors import BatchError, PlanError
from frontends.plan.schedule import check_name
from frontends.price.pins import Pin
from frontends.price.pricing import Level

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of it are done, and of how many."""

Strategy = Literal["auto", "search", "data_parallel", "zero2", "zero", "megatron", "equal_layers"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to plan a training step.

    Raises:
        PlanError: A value is of another kind; the message says which there are.
        BatchError: `microbatches` is not a number of parts, or not the plan's.

    Examples:
        >>> PlanOptions(microbatches=4, strategy="zero")
        PlanOptions(microbatches=4, strategy='zero')
    """

    microbatches: int | None = None
    """Parts that the batch is cut into. By default 8, or twice as many as often as the usual plans
    gain from it or have no room; only numbers that may be fastest are searched. And 1 if a plan
    without a pipeline is faster, or if the step is not a sum over its examples (with a warning)."""

    strategy: Strategy = "auto"
    """`auto` takes the fastest plan. `search`, `data_parallel`, `zero2`, `zero`, `megatron` and
    `equal_layers` take that one."""

    schedule: str | None = None
    """Name of a schedule that trains, as `zb-h1`: one of pipesched's, or of those that others have
    registered (`pipesched.register_schedule`). By default the fastest of `1f1b`, `eager-1f1b` and
    `gpipe` that fits. A plan of one stage has nothing to order: `1f1b`."""

    memory_bytes: int | None = None
    """Limit of one device; the cluster's by default."""

    level: Level = "O2"
    """`O2` ties repeated layers and prices stages layer by layer; `O3` searches each stage that may
    be taken on its own (Rhino's names)."""

    memory_rule: MemoryRule = "limit"
    """Where state sharded by a simple rule does not fit: `limit` searches under the limit,
    `largest` shards the fewest of the largest parameters (Rhino 4.4)."""

    pin: Mapping[str, Pin] | None = None
    """What is held as you want it: by the name of a value, or the path of arguments that it begins
    with, its spec or the number of its stage, as `{"params['w']": "RS0"}`."""

    n_layers: int | None = None
    """How finely the model may be cut into stages; by default at its repeated blocks."""

    plan: Plan | None = None
    """Use this plan, with its microbatches and layers, instead of searching one."""

    progress: Progress | None = None
    """Told what is being done, how many of it are done, and of how many."""

    def __post_init__(self) -> None:
        _check_one_of("strategy", self.strategy, STRATEGIES)
        if self.schedule is not None:
            check_name(self.schedule)
        _check_one_of("level", self.level, get_args(Level))
        _check_one_of("memory_rule", self.memory_rule, get_args(MemoryRule))
        _check_kind("plan", self.plan, Plan | None, "Plan.load('plan.json') reads one")
        _check_kind("pin", self.pin, Mapping | None, "as pin={\"params['w']\": 'RS0'}")
        if self.pin is not None:  # the user's own may change
            object.__setattr__(self, "pin", dict(self.pin))
        for name in ("memory_bytes", "n_layers"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise PlanError(
                    f"{name} is a whole number from 1 on, or None; got {name}={value!r}"
                )
        if self.microbatches is not None and not (
            is_number(self.microbatches) and self.microbatches > 0
        ):
            raise BatchError(
                "microbatches is how many parts a batch is cut into, a whole number from 1 on, or "
                f"None; got microbatches={self.microbatches!r}"
            )
        if self.plan is not None:
            self._check_beside(self.plan)
        if self.plan is not None and self.microbatches not in (None, self.plan.microbatches):
            raise BatchError(
                f"a plan runs with its own microbatches; got microbatches={self.microbatches}, and "
                f"the plan has {self.plan.microbatches}: leave one of them out"
            )

    def _check_beside(self, plan: Plan) -> None:
        """Raise `PlanError` for what asks for another plan than the one that is given."""
        for name, text in self.asked():
            if name not in _BESIDE_A_PLAN and (name, text) not in plan.options:
                raise PlanError(
                    f"a plan that is given runs as it is; got {name}={text} beside a plan that was "
                    f"not searched so: leave {name} out, or plan again without plan="
                )

    def __repr__(self) -> str:
        changed = (f"{name}={value!r}" for name, value in self.keywords().items())
        return f"PlanOptions({', '.join(changed)})"

    @classmethod
    def of(cls, keywords: Mapping[str, Any], function: Callable[..., Any]) -> PlanOptions:
        """The keywords of a call.

        Args:
            keywords: By their names.
            function: That was called with them.

        Raises:
            TypeError: There is no such option.
        """
        for name in keywords:
            if name not in _NAMES:
                known = inspect.signature(function).parameters.values()
                names = [p.name for p in known if p.kind is inspect.Parameter.KEYWORD_ONLY]
                near = get_close_matches(name, names, 1)
                raise TypeError(
                    f"{function.__name__} has the options {', '.join(names)}; got {name}"
                    + (f": did you mean {near[0]}?" if near else "")
                )
        return cls(**keywords)

    def keywords(self) -> PlanKeywords:
        """What is not as by default, as `plan_for` and `parallelize` take it."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {f.name: named[f.name] for f in fields(self) if named[f.name] != f.default}
        return cast("PlanKeywords", changed)

    def asked(self) -> tuple[tuple[str, str], ...]:
        """What a plan was asked to be, where that is not as by default, as texts."""
        named = ((name, repr(value)) for name, value in self.keywords().items())
        return tuple((name, text) for name, text in named if name not in ("plan", "progress"))

    def memory_limit(self, cluster: Cluster) -> int:
        """Bytes that a device of a cluster may hold."""
        return cluster.device.memory_bytes if self.memory_bytes is None else self.memory_bytes

    def with_plan(self, plan: Plan | None) -> PlanOptions:
        """The same with another plan, or none, in its own microbatches, or any."""
        if plan is None:
            return replace(self, plan=None, microbatches=None)
        return PlanOptions(plan=plan, memory_bytes=self.memory_bytes, progress=self.progress)

    def tell(self, what: str, done: int, of: int) -> None:
        """Let the user know how far it is."""
        if self.progress is not None:
            self.progress(what, done, of)


_NAMES = tuple(field.name for field in fields(PlanOptions))

_BESIDE_A_PLAN = ("memory_bytes", "microbatches")
"""Options that are compared with a plan that is given, each in its own way."""


class PlanKeywords(TypedDict, total=False):
    """The fields of `PlanOptions` as keywords, which all may be left out."""

    microbatches: int | None
    strategy: Strategy
    schedule: str | None
    memory_bytes: int | None
    level: Level
    memory_rule: MemoryRule
    pin: Mapping[str, Pin] | None
    n_layers: int | None
    plan: Plan | None
    progress: Progress | None


def takes_plan_options(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Let the signature of a function say which keywords its `**options` are."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(PlanOptions)
    ]
    signature = signature.replace(parameters=[*own, *options])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def check_where(cluster: object, hold: object = None) -> None:
    """Raise `PlanError` for what is no cluster, or no plan that is to be held."""
    _check_kind("cluster", cluster, Cluster, "Cluster.preset('two-hosts') makes one")
    _check_kind("hold", hold, Plan | None, "the plan of a step is its plan")


def _check_kind(name: str, value: object, kind: Any, how: str) -> None:
    """Raise `PlanError` for a value of another kind.

    Args:
        name: Of the argument.
        value: That was given.
        kind: That it has to be.
        how: To make one.
    """
    if not isinstance(value, kind):
        kinds = (each for each in getattr(kind, "__args__", (kind,)) if each is not type(None))
        named = " or ".join(each.__name__ for each in kinds)
        raise PlanError(f"{name} is a {named}; got {name}={value!r}: {how}")


def is_number(value: object) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"a {name} is one of {', '.join(known)}; got {value!r}")
