"""What the commands `plan` and `train` both take: a model, its sizes, a cluster, how to plan.

An argument is a field of `PlanArguments`; `takes_plan_arguments` gives all of them to a command.
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
from frontends.plan.schedule import PLAIN, runs
from frontends.price.pins import Pin
from frontends.price.pricing import Level
from frontends.search.plan_options import STRATEGIES, PlanKeywords, PlanOptions

if TYPE_CHECKING:
    from frontends.cli.demo.subject import Subject
    from frontends.cli.demo.train import Job

_MODEL, _CLUSTER, _PLAN = "What to plan", "What to plan for", "How to plan"
"""Headings of the help."""

_SIZES = {
    "layers": "n_layers",
    "d_model": "d_model",
    "heads": "n_heads",
    "sequence": "sequence",
    "batch": "batch",
}
"""Options that change a model, and what they are called there."""

_SCHEDULES = [n for n in pipesched.NAMES if runs(pipesched.schedule_entry(n).example)]
"""Names that are always known."""

_SEARCH = ("microbatches", "schedule", "strategy", "memory", "level", "memory_rule", "pin")
"""Options that a plan is searched by."""


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    """What reads one of some names, which the planner has and not this module."""

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
    """Options of a command, as they were given; None where one was not."""

    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="In JAX gpt-bytes, gpt-350m, ..., gpt-39b. The command plan also takes, in "
            "PyTorch, gpt2, bert-large, llama-3-8b, llama-3-70b, mixtral-8x7b, and a config.json "
            "of Hugging Face; and in both FILE.py:FUNCTION, which returns (model, optimizer, "
            "loss_fn, batch) or, in JAX, (train_step, arguments).",
            rich_help_panel=_MODEL,
        ),
    ] = "gpt-bytes"
    layers: Annotated[int | None, _size("Transformer blocks, instead of the model's.")] = None
    d_model: Annotated[int | None, _size("Width, instead of the model's.")] = None
    heads: Annotated[int | None, _size("Attention heads of a block, as well.")] = None
    sequence: Annotated[int | None, _size("Tokens seen at once, as well.")] = None
    batch: Annotated[int | None, _size("Sequences in a step, as well.")] = None
    cluster: Annotated[
        str,
        typer.Option(
            metavar="NAME[:HOSTS]|FILE",
            help="A preset, as p3.16xlarge:8, or a JSON file.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "two-hosts"
    devices: Annotated[
        int | None, _size("Devices of all hosts, instead of the cluster's.", _CLUSTER)
    ] = None
    hosts: Annotated[int | None, _size("Hosts, instead of the cluster's.", _CLUSTER)] = None
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Limit of one device, as 512MiB, instead of the cluster's.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    microbatches: Annotated[
        int | None, _size("Parts that the batch is cut into; searched if not set.", _PLAN)
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Order of the pipeline's work: {', '.join(_SCHEDULES)}, or one that FILE.py or "
            f"an installed package registers; the fastest of {', '.join(PLAIN)} if not set.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    strategy: Annotated[
        str | None,
        _choice(
            STRATEGIES,
            f"What makes the plan: {', '.join(STRATEGIES)}; auto, if not set, is the fastest.",
        ),
    ] = None
    level: Annotated[
        str | None,
        _choice(get_args(Level), "O2 is quick; O3 searches every stage on its own. O2 if not set."),
    ] = None
    memory_rule: Annotated[
        str | None,
        _choice(
            get_args(MemoryRule),
            "Where state does not fit: limit searches under the limit, largest shards the "
            "largest parameters first (Rhino). limit if not set.",
        ),
    ] = None
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC|STAGE",
            help="Hold a value, or all below a path of arguments, in a layout or on a stage: "
            "\"params['head']=RS0\", \"params['embedding']=0\"; may be repeated.",
            rich_help_panel=_PLAN,
        ),
    ] = None

    def subject(self) -> Subject:
        """What to plan; see `frontends.cli.demo.subject`.

        Raises:
            typer.BadParameter: Options that mean nothing, or nothing together.
            PlanError: A model cannot be made, or a file has none.
        """
        from frontends.cli.demo.subject import Subject, of_config, of_file, of_torch
        from frontends.cli.demo.torch_models import TORCH_MODELS

        sizes = self._sizes()
        file, colon, function = self.model.rpartition(":")
        if colon and file.endswith(".py"):
            if sizes:
                raise typer.BadParameter(
                    f"sizes change a model that has a name; {self.model} has its own"
                )
            return of_file(Path(file), function)
        if self.model.endswith(".json"):
            return of_config(Path(self.model), sizes)
        if self.model in TORCH_MODELS:
            return of_torch(TORCH_MODELS[self.model], sizes)
        job = self.job()
        return Subject("jax", (job.train_step, job.shapes()))

    def where(self) -> Cluster:
        """What to plan for."""
        return _cluster(self.cluster, self.devices, self.hosts)

    def job(
        self,
        *,
        steps: int = 1,
        learning_rate: float = 0.0,
        seed: int = 0,
        plan: Plan | None = None,
    ) -> Job:
        """What to plan and train.

        Raises:
            typer.BadParameter: Options that mean nothing, or nothing together.
        """
        cluster = self.where()
        options = self.how() if plan is None else self._without_search(plan)
        from frontends.cli.demo.models import MODELS
        from frontends.cli.demo.torch_models import TORCH_MODELS
        from frontends.cli.demo.train import Job

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
        return Job(
            config=config,
            cluster=cluster,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            seed=seed,
            options=options,
        )

    def _sizes(self) -> dict[str, Any]:
        """Those that are given, by what models call them."""
        found = {size: getattr(self, option) for option, size in _SIZES.items()}
        return {size: n for size, n in found.items() if n is not None}

    def how(self) -> PlanOptions:
        """How to plan; what is not given is the planner's to choose.

        Raises:
            typer.BadParameter: There is no such schedule; a file's are known once it was read.
        """
        options = {
            "microbatches": self.microbatches,
            "schedule": self.schedule,
            "strategy": self.strategy,
            "memory_bytes": None if self.memory is None else _bytes(self.memory),
            "level": self.level,
            "memory_rule": self.memory_rule,
            "pin": _pins(self.pin or []),
        }
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return PlanOptions(**cast("PlanKeywords", given))
        except PlanError as error:  # all other names were looked at when they were read
            raise typer.BadParameter(str(error), param_hint="'--schedule'") from error

    def _without_search(self, plan: Plan) -> PlanOptions:
        for name in _SEARCH:
            if getattr(self, name):
                raise typer.BadParameter(
                    f"a saved plan is not searched again, so --{name.replace('_', '-')} would "
                    "change nothing: leave it out, or leave out --plan"
                )
        return PlanOptions(plan=plan)


def takes_plan_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, with the options of `PlanArguments` in place of its first argument."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(PlanArguments, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = PlanArguments(
            **{field.name: given.pop(field.name) for field in fields(PlanArguments)}
        )
        command(options, **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared, *own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _cluster(name: str, devices: int | None, hosts: int | None) -> Cluster:
    """A preset or a file's cluster, with as many hosts and devices as asked for."""
    if name.partition(":")[0] in presets():
        found = Cluster.preset(name)
    else:
        try:
            found = Cluster.from_json(Path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(
                f"--cluster is {', '.join(presets())} or a JSON file; {name}: {error}"
            ) from error
    n_hosts = found.n_hosts if hosts is None else hosts
    n_devices = n_hosts * found.devices_per_host if devices is None else devices
    if n_devices % n_hosts:
        raise typer.BadParameter(
            "every host has equally many devices, so --devices must be a multiple of --hosts; "
            f"got {n_devices} devices and {n_hosts} hosts"
        )
    return found.resized(n_hosts=n_hosts, devices_per_host=n_devices // n_hosts)


def _bytes(text: str) -> int:
    try:
        return bytes_of(text)
    except AmountError as error:
        raise typer.BadParameter(f"--memory: {error}") from error


def _pins(texts: Sequence[str]) -> dict[str, Pin] | None:
    """Pins by what they hold: `params['head']=RS0` a layout, `params['head']=1` a stage."""
    pins: dict[str, Pin] = {}
    for text in texts:
        name, equals, pin = (part.strip() for part in text.rpartition("="))
        if not (name and equals and pin):
            raise typer.BadParameter(
                f"--pin is NAME=SPEC or NAME=STAGE, as \"params['head']=RS0\"; got {text!r}"
            )
        if name in pins:
            raise typer.BadParameter(f"--pin holds a name in one way; {name} is given twice")
        pins[name] = int(pin) if pin.isascii() and pin.isdigit() else pin
    return pins or None
