"""What a user can ask of a plan, as one value that all planning functions and the command line use.

`parallelize(step, microbatches=4)` has the fields of `PlanOptions` as keywords. Editors and type
checkers see them in `PlanKeywords`, `help()` by `takes_plan_options`; a test compares the three.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, cast, get_args

from autoshard import MemoryRule
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.errors import BatchError, PlanError
from frontends.plan.plan_fields import REMATS, Remat
from frontends.plan.schedule import check_name
from frontends.price.parallel_options import ParallelPins
from frontends.price.pins import Pin
from frontends.price.pricing import Level

Progress = Callable[[str, int, int], None]
"""A function of the current activity, the number of its parts that are done, and of all parts."""

OnPlan = Callable[[str, Plan | str], None]
"""A function of what was tried, and of the plan that came of it, or why there is none."""

Stages = int | tuple[int, ...] | tuple[tuple[int, int, int], ...]
"""A number of pipeline ranks; or the layers of each stage; or layers, hosts, devices of a host."""

SEARCH = "search"
"""The strategy that searches stages, submeshes and shardings."""

Strategy = Literal["auto", "search", "data_parallel", "zero2", "zero", "megatron", "equal_layers"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to plan a training step.

    Raises:
        PlanError: A field has an invalid value; the message says which ones are valid.
        BatchError: `microbatches` is not a number of parts, or differs from that of `plan`.

    Examples:
        >>> PlanOptions(microbatches=4, strategy="zero")
        PlanOptions(microbatches=4, strategy='zero')
    """

    microbatches: int | None = None
    """Number of parts that the batch is cut into. Default: start at 8 and keep doubling while a
    baseline plan gets faster or does not fit; only numbers that may be the fastest are searched. 1
    is taken if a plan without a pipeline is faster, or, with a warning, if the step is not a sum
    over its examples; 2 or 4 if such a plan does not fit in 1."""

    microbatch_statistics: bool = False
    """Whether a microbatch may use statistics of its own examples in place of those of the whole
    batch: batch normalization and the balance of experts, which else need one microbatch. The
    result is then the mean over the microbatches, as in GPipe and Megatron-LM, and differs from
    that of one device."""

    strategy: Strategy = "auto"
    """`auto` takes the fastest plan. `search` takes the searched one; `data_parallel`, `zero2`,
    `zero`, `megatron` and `equal_layers` take that baseline."""

    schedule: str | None = None
    """Name of a pipeline schedule with backwards, such as `zb-h1`: pipesched's or a registered one
    (`pipesched.register_schedule`). By default the fastest of `1f1b`, `eager-1f1b` and `gpipe` that
    fits, or of `interleaved-1f1b`, `zb-h1`, `zb-auto`, `zb-v`, `v-half` and `v-min` in pipelines of
    as many ranks. A plan of one stage always has `1f1b`, as it has nothing to order."""

    stages: Stages | None = None
    """The pipeline: its number of ranks, each with equally many devices; or the layers of each
    stage, as `(3, 3, 2)`; or layers, hosts, and devices of a host of each, as `((12, 1, 4), ...)`.
    """

    chunks: int | None = None
    """Stages on each rank, for an interleaved schedule (by default `interleaved-1f1b`)."""

    dp: int | None = None
    """Data parallel ways: parts into which the devices of each stage cut a microbatch."""

    tp: int | None = None
    """Tensor parallel ways: neighbouring devices that share the parameters of a stage. With `dp`,
    `tp` or `zero`, the devices of a stage that are not for one of `dp` and `tp` are for the other;
    with `zero` alone, all are data parallel."""

    zero: int | None = None
    """The stage of ZeRO, what is sharded over data parallel devices: 0 nothing, 1 optimizer state,
    2 sums of gradients, too, 3 parameters, too. By default the first that fits."""

    mesh: tuple[int, int] | None = None
    """The shape of the logical mesh of each stage, as `(2, 4)`; what is sharded over which axis is
    searched."""

    remat: Remat | None = None
    """What backward computes again instead of holding it since forward: `none`; `cheap`, all but
    products; `dots`, products with batch dims such as attention, too; `all`, from the input of each
    layer on. By default nothing, unless memory is short and a plan that recomputes is faster."""

    memory_bytes: int | None = None
    """Memory limit of one device; by default the memory of the cluster's devices."""

    level: Level = "O2"
    """`O2` ties repeated layers and prices stages layer by layer; `O3` searches every candidate
    stage on its own (Rhino's names)."""

    memory_rule: MemoryRule = "limit"
    """What to do if no simple rule for sharding state fits: `limit` searches under the limit,
    `largest` shards the fewest of the largest parameters (Rhino 4.4)."""

    pin: Mapping[str, Pin] | None = None
    """Choices that the plan has to keep: by the name of a value, or the path with which names of
    arguments begin, the spec of the value or the number of its stage, such as
    `{"params['w']": "RS0"}`; by a kind of operators, the spec of their first results, or those of
    their first operands, such as `{"meshwright_attention": "RS0RR,RS0RR"}`."""

    n_layers: int | None = None
    """The most layers that the model is cut into; by default it is cut at its repeated blocks."""

    plan: Plan | None = None
    """Use this plan, with its microbatches and layers, instead of searching one."""

    search_deadline_s: float | None = None
    """Seconds after which the best plan so far is taken; by default the search ends by itself. It
    goes on until one plan is found. Its `lower_bound_s` is then a bound for all plans that might
    have been found. Two searches that a deadline ends may find different plans."""

    advise: bool = True
    """Whether to search, for up to a minute, what would run if nothing does; the error lists it."""

    progress: Progress | None = None
    """Called with the current activity, the number of its parts that are done, and of all parts."""

    on_plan: OnPlan | None = None
    """Called with what was tried and the plan that came of it, or the reason why there is none, as
    soon as it is known: to watch a search."""

    def __post_init__(self) -> None:
        _check_one_of("strategy", self.strategy, STRATEGIES)
        if self.schedule is not None:
            check_name(self.schedule)
        self._check_ways()
        if self.remat is not None:
            _check_one_of("remat", self.remat, REMATS)
        _check_one_of("level", self.level, get_args(Level))
        _check_one_of("memory_rule", self.memory_rule, get_args(MemoryRule))
        check_kind("plan", self.plan, Plan | None, "Plan.load('plan.json') reads one")
        check_kind("microbatch_statistics", self.microbatch_statistics, bool, "True allows them")
        check_kind("advise", self.advise, bool, "False leaves out the search for what would run")
        check_kind("pin", self.pin, Mapping | None, "as pin={\"params['w']\": 'RS0'}")
        if self.pin is not None:  # a copy, as the user may change the mapping
            object.__setattr__(self, "pin", dict(self.pin))
        for name in ("memory_bytes", "n_layers", "chunks", "dp", "tp"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise PlanError(
                    f"{name} is a whole number from 1 on, or None; got {name}={value!r}"
                )
        seconds = self.search_deadline_s
        is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_time and seconds > 0):
            raise PlanError(
                "search_deadline_s is a positive number of seconds, or None; got "
                f"search_deadline_s={seconds!r}"
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

    def _check_ways(self) -> None:
        """Check the options that choose the ways of parallelism."""
        if self.stages is not None:
            object.__setattr__(self, "stages", _stages(self.stages))
        if self.chunks is not None and is_number(self.chunks) and self.chunks > 0:
            check_name(self.pipeline or "")
        if self.zero is not None and not (is_number(self.zero) and 0 <= self.zero <= 3):
            raise PlanError(f"zero is a stage of ZeRO, from 0 to 3; got zero={self.zero!r}")
        if self.mesh is not None:
            mesh = self.mesh
            if not (isinstance(mesh, Sequence) and len(mesh) == 2 and all(map(_is_count, mesh))):
                raise PlanError(
                    f"mesh is two numbers of devices, as mesh=(2, 4); got mesh={self.mesh!r}"
                )
            object.__setattr__(self, "mesh", tuple(mesh))
            if self.parallel.has_ways:
                raise PlanError(
                    "dp= and tp= give the shape of a stage's mesh, and mesh= a shape of which the "
                    f"use is searched; got both, with mesh={self.mesh!r}: leave one out"
                )
        named = [name for name in WAYS_ASKED if getattr(self, name) is not None]
        if named and self.strategy not in ("auto", SEARCH):
            raise PlanError(
                f"strategy={self.strategy!r} says how the whole step is parallelized; got "
                f"{', '.join(named)} with it: leave one of them out"
            )

    @property
    def chooses_ways(self) -> bool:
        """Whether some ways of parallelism are chosen, so that whole strategies do not apply."""
        return any(getattr(self, name) is not None for name in WAYS_ASKED)

    @property
    def has_baselines(self) -> bool:
        """Whether the usual plans are all baselines, in plain schedules."""
        return self.strategy == "auto" and self.schedule is None and not self.chooses_ways

    @property
    def pipeline(self) -> str | None:
        """The name of the schedule, with its number of chunks; None if the planner chooses."""
        if self.chunks is None:
            return self.schedule
        return f"{self.schedule or 'interleaved-1f1b'}:{self.chunks}"

    @property
    def parallel(self) -> ParallelPins:
        """The ways of parallelism that every stage must have."""
        return ParallelPins(self.dp, self.tp, self.zero, self.mesh)

    def _check_beside(self, plan: Plan) -> None:
        """Raise `PlanError` if another option asks for a plan that differs from `plan`."""
        for name, text in self.asked():
            if name not in _BESIDE_A_PLAN and (name, text) not in plan.options:
                raise PlanError(
                    f"plan= runs a plan without changes; got {name}={text} with a plan that was "
                    f"searched without it: leave {name} out, or plan again without plan="
                )

    def __repr__(self) -> str:
        changed = (f"{name}={value!r}" for name, value in self.keywords().items())
        return f"PlanOptions({', '.join(changed)})"

    @classmethod
    def of(cls, keywords: Mapping[str, Any], function: Callable[..., Any]) -> PlanOptions:
        """The options from the keywords of a call.

        Args:
            keywords: The keywords by name.
            function: The function that was called with them.

        Raises:
            TypeError: An option of this name does not exist.
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
        """The fields that differ from their defaults, as `plan_for` and `parallelize` take them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {f.name: named[f.name] for f in fields(self) if named[f.name] != f.default}
        return cast("PlanKeywords", changed)

    def asked(self) -> tuple[tuple[str, str], ...]:
        """The options that differ from their defaults and decide what the plan is, as texts."""
        named = ((name, repr(value)) for name, value in self.keywords().items())
        return tuple((name, text) for name, text in named if name not in _NOT_ASKED)

    @property
    def has_statistics(self) -> bool:
        """Whether microbatches use statistics of their own, as asked for or as in `plan`."""
        asked = ("microbatch_statistics", "True")
        return self.microbatch_statistics or (self.plan is not None and asked in self.plan.options)

    def with_plan(self, plan: Plan | None) -> PlanOptions:
        """The options to run a plan with; if it is None, these without plan and microbatches."""
        if plan is None:
            return replace(self, plan=None, microbatches=None)
        return PlanOptions(
            plan=plan,
            microbatch_statistics=self.microbatch_statistics,
            memory_bytes=self.memory_bytes,
            progress=self.progress,
            on_plan=self.on_plan,
        )

    def of_followers(self) -> PlanOptions:
        """The options for functions that follow a step: without those that choose its plan."""
        return PlanOptions(
            microbatch_statistics=self.microbatch_statistics,
            memory_bytes=self.memory_bytes,
            level=self.level,
            memory_rule=self.memory_rule,
            search_deadline_s=self.search_deadline_s,
            advise=self.advise,
            progress=self.progress,
            on_plan=self.on_plan,
        )

    def tell(self, what: str, done: int, of: int) -> None:
        """Report progress to the user."""
        if self.progress is not None:
            self.progress(what, done, of)

    def tell_plan(self, what: str, plan: Plan | str) -> None:
        """Report a plan that was tried, or why there is none, to the user."""
        if self.on_plan is not None:
            self.on_plan(what, plan)


_NAMES = tuple(field.name for field in fields(PlanOptions))

WAYS_ASKED = ("stages", "chunks", "dp", "tp", "zero")
"""Options that choose ways of parallelism."""

_NOT_ASKED = ("plan", "advise", "progress", "on_plan")
"""Options that do not decide what is searched."""

_BESIDE_A_PLAN = ("memory_bytes", "microbatches", "microbatch_statistics")
"""Options that may be given with `plan`; each is compared with it elsewhere."""


class PlanKeywords(TypedDict, total=False):
    """The fields of `PlanOptions` as keywords, all optional."""

    microbatches: int | None
    microbatch_statistics: bool
    strategy: Strategy
    schedule: str | None
    stages: Stages | None
    chunks: int | None
    dp: int | None
    tp: int | None
    zero: int | None
    mesh: tuple[int, int] | None
    remat: Remat | None
    memory_bytes: int | None
    level: Level
    memory_rule: MemoryRule
    pin: Mapping[str, Pin] | None
    n_layers: int | None
    plan: Plan | None
    search_deadline_s: float | None
    advise: bool
    progress: Progress | None
    on_plan: OnPlan | None


def takes_plan_options(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Replace `**options` in the signature of a function by the fields of `PlanOptions`."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(PlanOptions)
    ]
    signature = signature.replace(parameters=[*kept, *options])
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def check_where(cluster: object, hold: object = None) -> None:
    """Raise `PlanError` unless `cluster` is a cluster and `hold` a plan or None."""
    check_kind("cluster", cluster, Cluster, "Cluster.preset('two-hosts') makes one")
    check_kind("hold", hold, Plan | None, "the plan of a step is its plan")


def check_kind(name: str, value: object, kind: Any, how: str) -> None:
    """Raise `PlanError` unless an argument is an instance of a type.

    Args:
        name: Name of the argument.
        value: Its value.
        kind: The type, or a union of a type and None.
        how: How to make such a value, for the message.
    """
    if not isinstance(value, kind):
        kinds = (each for each in getattr(kind, "__args__", (kind,)) if each is not type(None))
        named = " or ".join(each.__name__ for each in kinds)
        raise PlanError(f"{name} is a {named}; got {name}={value!r}: {how}")


def _stages(stages: object) -> Stages:
    """The option `stages`, as tuples; `PlanError` if it is none of its forms."""
    if is_number(stages) and cast("int", stages) > 0:
        return cast("int", stages)
    if isinstance(stages, Sequence) and not isinstance(stages, str) and stages:
        if all(map(_is_count, stages)):
            return tuple(stages)
        if all(isinstance(s, Sequence) and len(s) == 3 and all(map(_is_count, s)) for s in stages):
            return tuple(tuple(stage) for stage in stages)
    raise PlanError(
        "stages is a number of pipeline ranks, or for each stage its number of layers, as (3, 3, "
        "2), or its layers, hosts and devices of a host, as ((12, 1, 4), (12, 1, 4)); got "
        f"stages={stages!r}"
    )


def _is_count(value: object) -> bool:
    return is_number(value) and cast("int", value) > 0


def is_number(value: object) -> bool:
    """Whether a value is an integer, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"a {name} is one of {', '.join(known)}; got {value!r}")
