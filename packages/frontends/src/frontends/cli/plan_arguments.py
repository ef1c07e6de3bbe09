"""The options that `plan` and `train` share: a model and its sizes, a cluster, how to plan.

Each option is a field of `PlanArguments`; `takes_plan_arguments` adds all of them to a command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import pipesched
import typer
from autoshard import MemoryRule
from costmodel import Cluster, presets
from shardspec.amounts import bytes_of
from shardspec.errors import AmountError

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.plan.plan_fields import REMATS
from frontends.plan.schedule import runs
from frontends.price.pins import Pin
from frontends.price.pricing import Level
from frontends.search.plan_options import STRATEGIES, PlanKeywords, PlanOptions

if TYPE_CHECKING:
    from frontends.cli.demo.subject import Subject
    from frontends.cli.demo.train import TrainingJob

_MODEL, _CLUSTER, _PLAN = "Model", "Cluster", "How to plan"
"""Headings of the help."""

_SIZES = {
    "layers": "n_layers",
    "d_model": "d_model",
    "heads": "n_heads",
    "sequence": "sequence",
    "batch": "batch",
}
"""By option that changes a size of a model, the model's name for it."""

_SCHEDULES = [n for n in pipesched.NAMES if runs(pipesched.schedule_entry(n).example)]
"""Names of schedules that are always known."""

_WAYS = ("stages", "chunks", "dp", "tp", "zero", "mesh")
"""Options that choose ways of parallelism."""

_SEARCH = (
    *("microbatches", "microbatch_statistics", "schedule", *_WAYS, "strategy"),
    *("remat", "memory", "level", "memory_rule", "pin", "search_deadline", "advise"),
)
"""Options that apply to a search, and not to a plan that was saved."""


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    """A parser of an option that takes one of some names."""

    def parse(name: str) -> str:
        if name not in names:
            raise typer.BadParameter(f"one of {', '.join(names)}; got {name!r}")
        return name

    return parse


def _choice(names: Sequence[str], what: str) -> Any:
    """An option whose value is one of some names."""
    return typer.Option(parser=_one_of(names), metavar="NAME", help=what, rich_help_panel=_PLAN)


def _size(what: str, heading: str = _MODEL) -> Any:
    return typer.Option(min=1, help=what, rich_help_panel=heading)


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """The options of a command; None for an option that the user did not set."""

    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="A JAX model: gpt-bytes, gpt-350m, ..., gpt-39b. The command plan also takes a "
            "PyTorch model: gpt2, bert-large, llama-3-8b, llama-3-70b, mixtral-8x7b, or a "
            "config.json of Hugging Face; and FILE.py:FUNCTION, where the function returns (model, "
            "optimizer, loss_fn, batch) in PyTorch, or (train_step, arguments) in JAX.",
            rich_help_panel=_MODEL,
        ),
    ] = "gpt-bytes"
    layers: Annotated[int | None, _size("Transformer blocks, instead of the model's.")] = None
    d_model: Annotated[int | None, _size("Width, instead of the model's.")] = None
    heads: Annotated[int | None, _size("Attention heads of a block, instead of the model's.")] = (
        None
    )
    sequence: Annotated[int | None, _size("Tokens of a sequence, instead of the model's.")] = None
    batch: Annotated[int | None, _size("Sequences in a step, instead of the model's.")] = None
    cluster: Annotated[
        str,
        typer.Option(
            metavar="NAME[:HOSTS]|FILE",
            help="A preset, such as p3.16xlarge:8, or a JSON file; several with + between them.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "two-hosts"
    devices: Annotated[
        int | None, _size("Devices of all hosts together, instead of the cluster's.", _CLUSTER)
    ] = None
    hosts: Annotated[int | None, _size("Hosts, instead of the cluster's.", _CLUSTER)] = None
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory limit of one device, such as 512MiB, instead of the cluster's.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    microbatches: Annotated[
        int | None, _size("Parts that the batch is cut into; searched if not set.", _PLAN)
    ] = None
    microbatch_statistics: Annotated[
        bool | None,
        typer.Option(
            "--microbatch-statistics",
            help="Let microbatches use statistics of their own examples, as for batch norm.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Pipeline schedule: {', '.join(_SCHEDULES)}, or one that FILE.py or an installed "
            "package registers; if not set, whatever is the fastest of many.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="N|LAYERS,...",
            help="Pipeline ranks, such as 8; or the layers of each stage, as 3,3,2; or layers, "
            "hosts and devices of a host: 12x1x4,12x1x4.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    chunks: Annotated[
        int | None, _size("Stages on each rank of an interleaved schedule.", _PLAN)
    ] = None
    dp: Annotated[int | None, _size("Data parallel ways of each stage.", _PLAN)] = None
    tp: Annotated[int | None, _size("Tensor parallel ways of each stage.", _PLAN)] = None
    zero: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=3,
            help="Stage of ZeRO: 1 shards optimizer state over the data parallel devices, 2 also "
            "sums of gradients, 3 also parameters.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="NxN",
            help="Shape of the logical mesh of each stage, such as 2x4.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    strategy: Annotated[
        str | None,
        _choice(
            STRATEGIES,
            f"One of {', '.join(STRATEGIES)}; auto, the default, takes the fastest of the others.",
        ),
    ] = None
    remat: Annotated[
        str | None,
        _choice(
            REMATS,
            "What backward computes again: none, cheap results, dots with batch dims such as "
            "attention, or all of a layer; if not set, whatever is fastest where memory is short.",
        ),
    ] = None
    level: Annotated[
        str | None,
        _choice(get_args(Level), "O2, the default, is quick; O3 searches every stage on its own."),
    ] = None
    memory_rule: Annotated[
        str | None,
        _choice(
            get_args(MemoryRule),
            "What to do if state does not fit: limit, the default, searches under the limit; "
            "largest shards the largest parameters first (Rhino).",
        ),
    ] = None
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC|STAGE",
            help="Fix the layout or the stage of a value, or of all arguments below a path: "
            "\"params['head']=RS0\", \"params['embedding']=0\"; or the layouts of operands of a "
            'kind of operators: "meshwright_attention=RS0RR,RS0RR"; may be repeated.',
            rich_help_panel=_PLAN,
        ),
    ] = None

    search_deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Take the best plan that is found in this time, or the first one after it.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    advise: Annotated[
        bool | None,
        typer.Option(
            help="If nothing runs, search for up to a minute what would; so if not set.",
            rich_help_panel=_PLAN,
        ),
    ] = None

    def subject(self) -> Subject:
        """The training step to plan; see `frontends.cli.demo.subject`.

        Raises:
            typer.BadParameter: An option is invalid, or does not go with another one.
            PlanError: The model cannot be built, or the file has none.
        """
        from frontends.cli.demo.subject import Subject, of_config, of_file, of_torch
        from frontends.cli.demo.torch_models import TORCH_MODELS

        sizes = self._sizes()
        file, colon, function = self.model.rpartition(":")
        if colon and file.endswith(".py"):
            if sizes:
                raise typer.BadParameter(
                    f"size options change a model that has a name; {self.model} has its own sizes"
                )
            return of_file(Path(file), function)
        if self.model.endswith(".json"):
            return of_config(Path(self.model), sizes)
        if self.model in TORCH_MODELS:
            return of_torch(TORCH_MODELS[self.model], sizes)
        job = self.job()
        return Subject("jax", (job.train_step, job.shapes()))

    def where(self) -> Cluster:
        """The cluster to plan for."""
        return _cluster(self.cluster, self.devices, self.hosts)

    def job(
        self,
        *,
        steps: int = 1,
        learning_rate: float = 0.0,
        seed: int = 0,
        plan: Plan | None = None,
    ) -> TrainingJob:
        """The model to plan and train, and how.

        Raises:
            typer.BadParameter: An option is invalid, or does not go with another one.
        """
        cluster = self.where()
        options = self.how() if plan is None else self._without_search(plan)
        from frontends.cli.demo.models import MODELS
        from frontends.cli.demo.torch_models import TORCH_MODELS
        from frontends.cli.demo.train import TrainingJob

        if self.model not in MODELS:
            raise typer.BadParameter(
                f"--model is one of {', '.join(MODELS)}; plan also takes "
                f"{', '.join(TORCH_MODELS)}, a config.json and FILE.py:FUNCTION; got {self.model!r}"
            )
        known, sizes = MODELS[self.model], self._sizes()
        batch = sizes.pop("batch", known.batch)
        try:
            config = replace(known.config, **sizes)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return TrainingJob(
            config=config,
            cluster=cluster,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            seed=seed,
            options=options,
        )

    def _sizes(self) -> dict[str, Any]:
        """The sizes that the user set, by the model's names for them."""
        sizes = {size: getattr(self, option) for option, size in _SIZES.items()}
        return {size: n for size, n in sizes.items() if n is not None}

    def how(self) -> PlanOptions:
        """How to plan; the planner chooses whatever the user did not set.

        Raises:
            typer.BadParameter: The schedule does not exist, or options contradict each other.
                Schedules that a file registers are known once the file was run (`subject`).
        """
        options = {
            "microbatches": self.microbatches,
            "microbatch_statistics": self.microbatch_statistics,
            "schedule": self.schedule,
            "stages": None if self.stages is None else _stages(self.stages),
            "chunks": self.chunks,
            "dp": self.dp,
            "tp": self.tp,
            "zero": self.zero,
            "mesh": None if self.mesh is None else _numbers("--mesh", self.mesh),
            "strategy": self.strategy,
            "remat": self.remat,
            "memory_bytes": None if self.memory is None else _bytes(self.memory),
            "level": self.level,
            "memory_rule": self.memory_rule,
            "pin": _pins(self.pin or []),
            "search_deadline_s": self.search_deadline,
            "advise": self.advise,
        }
        keywords = {name: value for name, value in options.items() if value is not None}
        try:
            return PlanOptions(**cast("PlanKeywords", keywords))
        except PlanError as error:  # all other names were checked when they were parsed
            given = [
                name
                for name in ("schedule", *_WAYS, "search_deadline")
                if getattr(self, name) is not None
            ]
            hint = ", ".join(f"'--{name.replace('_', '-')}'" for name in given)
            raise typer.BadParameter(str(error), param_hint=hint) from error

    def _without_search(self, plan: Plan) -> PlanOptions:
        for name in _SEARCH:
            if getattr(self, name) not in (None, []):
                raise typer.BadParameter(
                    f"a saved plan is not searched again, so --{name.replace('_', '-')} would "
                    "change nothing: leave it out, or leave out --plan"
                )
        return PlanOptions(plan=plan)


def takes_plan_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, with the options of `PlanArguments` in place of its first argument."""
    _, *others = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(PlanArguments, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = PlanArguments(
            **{field.name: values.pop(field.name) for field in fields(PlanArguments)}
        )
        command(options, **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared, *others)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _cluster(name: str, devices: int | None, hosts: int | None) -> Cluster:
    """The cluster of a name, with other numbers of hosts and devices if set."""
    path = Path(name)
    parts = [name] if path.exists() else name.split("+")
    clusters = [_of_name(part) for part in parts]
    cluster = clusters[0] if len(clusters) == 1 else Cluster.joined(*clusters)
    if hosts is None and devices is None:
        return cluster
    if len(set(cluster.hosts)) > 1:
        raise typer.BadParameter(
            "--hosts and --devices are for equal hosts, and those of cluster "
            f"{cluster.name!r} differ: leave them out, or change its hosts"
        )
    n_hosts = cluster.n_hosts if hosts is None else hosts
    n_devices = n_hosts * cluster.devices_per_host if devices is None else devices
    if n_devices % n_hosts:
        raise typer.BadParameter(
            "every host has equally many devices, so --devices must be a multiple of --hosts; "
            f"got {n_devices} devices and {n_hosts} hosts"
        )
    return cluster.resized(n_hosts=n_hosts, devices_per_host=n_devices // n_hosts)


def _of_name(name: str) -> Cluster:
    """The cluster of a preset or a file."""
    if name.partition(":")[0] in presets():
        return Cluster.preset(name)
    try:
        return Cluster.from_json(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"--cluster is {', '.join(presets())} or a JSON file, or several with + between them; "
            f"{name}: {error}"
        ) from error


def _stages(text: str) -> int | tuple[int, ...] | tuple[tuple[int, ...], ...]:
    """`8` ranks, `3,3,2` layers, or `12x1x4,12x1x4` layers, hosts and devices of a host."""
    stages = [_numbers("--stages", stage) for stage in text.split(",")]
    if len(stages) == len(stages[0]) == 1 and "," not in text:
        return stages[0][0]
    return tuple(stages) if len(stages[0]) > 1 else tuple(n for stage in stages for n in stage)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = text.strip().split("x")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise typer.BadParameter(f"{option} takes numbers, joined by x; got {text!r}")
    return tuple(map(int, words))


def _bytes(text: str) -> int:
    try:
        return bytes_of(text)
    except AmountError as error:
        raise typer.BadParameter(f"--memory: {error}") from error


def _pins(texts: Sequence[str]) -> dict[str, Pin] | None:
    """Pins by name: `params['head']=RS0` pins a layout, `params['head']=1` a stage."""
    pins: dict[str, Pin] = {}
    for text in texts:
        name, equals, pin = (part.strip() for part in text.rpartition("="))
        if not (name and equals and pin):
            raise typer.BadParameter(
                f"--pin is NAME=SPEC or NAME=STAGE, as \"params['head']=RS0\"; got {text!r}"
            )
        if name in pins:
            raise typer.BadParameter(f"--pin takes each name once; got {name} twice")
        pins[name] = int(pin) if pin.isascii() and pin.isdigit() else pin
    return pins or None
