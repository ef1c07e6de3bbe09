"""Train the GPT by a plan, compare it with a single device, and write the results."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from costmodel import Cluster
from rich.console import Console

import frontends.jax as parallel
from frontends.answer.plan import Plan
from frontends.base.host_sizes import with_host_sizes
from frontends.cli.demo.display import Display
from frontends.cli.demo.text import Text, batches, split
from frontends.errors import DeviceError, OutputError, VerificationError
from frontends.jax.run.processes import gather, n_started, processes_of_hosts
from frontends.jax.run.verify import check_collectives
from frontends.models import gpt
from frontends.report.html import write_page
from frontends.report.picture import draw_losses, draw_plan, draw_timeline
from frontends.report.text import plan_tables
from frontends.run.verify import check_losses
from frontends.search.plan_options import PlanOptions

_FALLEN = 0.75
"""In a run that works, the last losses are below this part of the first one."""

_LONG_ENOUGH = 100
"""The fewest steps after which this is checked."""

_VALIDATION_BATCHES = 4
"""Batches over which a validation loss is the mean [chosen]."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of a run, from which it can resume after an interruption."""

    folder: Path
    every: int
    """Steps between checkpoints; the last step has one, too."""

    def is_due(self, done: int, steps: int) -> bool:
        """Whether to save a checkpoint after `done` of `steps` steps."""
        return done == steps or done % self.every == 0


class Validation:
    """The loss on text that a run is not trained on, by the run's own plan and layouts.

    Args:
        job: The job.
        text: The text.
        every: Steps between validations; the last step has one, too.

    Raises:
        DataError: The text is shorter than one sequence and the byte after it.
    """

    def __init__(self, job: TrainingJob, text: Text, every: int) -> None:
        self._job, self._every = job, every
        draw = batches(text, job.batch, job.config.sequence, job.seed)
        self._batches = list(islice(draw, _VALIDATION_BATCHES))
        self._loss: Callable[..., Any] | None = None
        self.took_s = 0.0
        """Seconds that all validations took, with planning and compiling."""

        self.losses: dict[int, float] = {}
        """By step, the mean loss after it, in nats a token."""

    def after(self, done: int, step: parallel.ParallelStep, params: gpt.Params) -> None:
        """Compute the loss after so many steps if it is due."""
        if done < self._job.steps and done % self._every:
            return
        started_s = time.perf_counter()
        self._loss = self._loss or step.follow(self._job.loss)
        found = [float(self._loss(params, batch)) for batch in self._batches]
        self.losses[done] = sum(found) / len(found)
        self.took_s += time.perf_counter() - started_s

    def __str__(self) -> str:
        return ", ".join(f"{loss:.3f} after step {done}" for done, loss in self.losses.items())


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A model, how to train it, and how to plan it."""

    config: gpt.GPTConfig
    cluster: Cluster
    steps: int
    batch: int
    learning_rate: float
    seed: int
    options: PlanOptions

    @property
    def train_step(self) -> gpt.TrainStep:
        """The step of one device."""
        return gpt.make_train_step(self.config, self._optimizer)

    def loss(self, params: gpt.Params, batch: gpt.Batch) -> jax.Array:
        """The loss of one device, for validation."""
        return gpt.loss(params, batch, self.config)

    def init(self, key: jax.Array) -> tuple[gpt.Params, Any]:
        """Parameters and optimizer state before the first step."""
        params = gpt.init(key, self.config)
        return params, self._optimizer.init(params)

    def state(self) -> tuple[gpt.Params, Any]:
        """The same on one device."""
        return self.init(jax.random.key(self.seed))

    def shapes(self) -> tuple[Any, ...]:
        """The shapes and types of the step's arguments."""
        tokens = jax.ShapeDtypeStruct((self.batch, self.config.sequence), jnp.int32)
        return (*jax.eval_shape(self.state), (tokens, tokens))

    def start(self) -> None:
        """Start JAX with the cluster's number of virtual devices; `DeviceError` if it has fewer."""
        n_devices = self.cluster.n_devices
        parallel.init(n_devices)
        if jax.device_count() < n_devices:
            raise DeviceError(
                f"cluster {self.cluster.name!r} needs {n_devices} devices; JAX's backend "
                f"{jax.default_backend()!r} has {jax.device_count()}: set JAX_PLATFORMS=cpu to use "
                "virtual devices, or ask for fewer with --devices"
            )

    @property
    def _optimizer(self) -> Any:
        return gpt.make_optimizer(self.learning_rate, self.steps)


def for_processes(job: TrainingJob) -> TrainingJob:
    """The job on a device for each process that a launcher started, on hosts as its cluster has.

    Without a launcher, it is the same job.

    Raises:
        HeterogeneousClusterError: The hosts of the job's cluster differ.
    """
    n = n_started()
    if n == 1:
        return job
    parallel.init(n)  # so that they can tell each other where they are
    return replace(job, cluster=with_host_sizes(job.cluster, processes_of_hosts()))


def make_folder(path: Path) -> None:
    """Create an output folder, unless it exists, and check that files can be written to it.

    Raises:
        OutputError: The folder cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"results are written to a folder; {path}: {error.strerror}: name another with --output"
        ) from error


def train(
    job: TrainingJob,
    text: Text,
    output: Path,
    verify_steps: int,
    console: Console,
    checkpoints: Checkpoints | None = None,
    validate_every: int | None = None,
) -> None:
    """Plan, train, verify; write plan.json, plan.html, losses.json and pictures to `output`.

    Of several processes, the first one prints, writes and compares losses; each checks its own
    programs. If there is a checkpoint, training resumes from the last one, and losses are not
    compared. With `validate_every`, the last tenth of the text is not trained on, and the loss on
    it is computed after each so many steps.

    Raises:
        VerificationError: The parallel run differs from a single device, or the loss has not
            fallen. All results are written before.
        FrontendsError: Other errors that `frontends.jax.parallelize` raises.
    """
    job.start()
    is_first = jax.process_index() == 0
    console.quiet = not is_first
    first = (parallel.latest(checkpoints.folder) or 0) if checkpoints else 0
    if first >= job.steps:
        console.print(f"All {job.steps} steps are done: the last checkpoint is of step {first}")
        return
    if is_first:
        make_folder(output)
    console.print(f"Text: {text}")
    validation = None
    if validate_every is not None:
        text, held_out = split(text)
        validation = Validation(job, held_out, validate_every)
    data = batches(text, job.batch, job.config.sequence, job.seed)
    if first:
        console.print(f"Resuming from the checkpoint of step {first}")
    display = Display(console)
    step = parallel.parallelize(
        job.train_step, cluster=job.cluster, **replace(job.options, progress=display).keywords()
    )
    shapes = job.shapes()
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes[0]))
    console.print(f"Model: {job.config}, {n_parameters:,} parameters")
    with display:
        plan = step.prepare(*shapes).plan
    console.print("", plan_tables(plan), "", sep="\n")
    plan.verify()
    if is_first:
        plan.save(output / "plan.json")
        write_page(plan, output / "plan.html")
        draw_plan(plan, output / "plan.png")
        draw_timeline(plan, output / "timeline.png")

    with display:
        runtime = step.compile(*shapes)
        key = jax.random.key(job.seed)
        if checkpoints and first:
            state = parallel.restore(checkpoints.folder, step.abstract_state(job.init, key), first)
        else:
            state = step.init(job.init, key)
        losses: list[float] = []
        started_s = time.perf_counter()
        for done, batch in enumerate(islice(data, first, job.steps), first + 1):
            *state, loss = step(*state, batch)
            losses.append(float(loss))
            if validation is not None:
                validation.after(done, step, state[0])
            if checkpoints and checkpoints.is_due(done, job.steps):
                parallel.save(checkpoints.folder, done, tuple(state))
            tokens = len(losses) * job.batch * job.config.sequence
            apart_s = 0.0 if validation is None else validation.took_s
            rate = tokens / (time.perf_counter() - started_s - apart_s)
            note = f"loss {losses[-1]:.3f}, {rate:,.0f} tokens/s"
            display("training", done, job.steps, note)
        single: list[float] = []
        if is_first:
            n_compared = 0 if first else min(verify_steps, job.steps)
            single = single_device_losses(job, text, n_compared, display)
            validated = {} if validation is None else validation.losses
            _write_losses(losses, single, validated, output, first)
    try:
        check_collectives(runtime)
        gather("", "check its programs")
        if is_first:
            _report(losses, single, plan, console, first)
            if validation is not None:
                console.print(f"Loss on text that was not trained on: {validation}")
    finally:
        console.print(f"Results: {output.resolve()}", soft_wrap=True)


def _report(
    losses: Sequence[float], single: Sequence[float], plan: Plan, console: Console, first: int
) -> None:
    if single:
        difference = check_losses(losses[: len(single)], single)
        console.print(
            f"Verified: the first {len(single)} losses equal a single device's; "
            f"largest relative difference {difference:.1e}"
        )
    n_collectives = sum(len(stage.collectives) for stage in plan.stages)
    console.print(f"Verified: the {n_collectives} collectives of the programs are the plan's")
    if first:
        console.print(f"Loss {losses[0]:.3f} after step {first} to {losses[-1]:.3f}")
    else:
        console.print(check_fallen(losses))


def single_device_losses(
    job: TrainingJob, text: Text, n_steps: int, display: Display
) -> list[float]:
    """The losses of the first steps on one device, from the same state and text."""
    step = jax.jit(job.train_step)
    params, opt_state = job.state()
    losses: list[float] = []
    for batch in islice(batches(text, job.batch, job.config.sequence, job.seed), n_steps):
        params, opt_state, loss = step(params, opt_state, batch)
        losses.append(float(loss))
        display("verifying", len(losses), n_steps)
    return losses


def check_fallen(losses: Sequence[float]) -> str:
    """Check that the loss fell; returns a sentence that says how far.

    Raises:
        VerificationError: The mean of the last tenth is not below `_FALLEN` of the first loss.
    """
    last = losses[-max(1, len(losses) // 10) :]
    mean = sum(last) / len(last)
    if len(losses) < _LONG_ENOUGH:
        return f"Loss {losses[0]:.3f} to {mean:.3f}; too few steps to check how far it fell"
    if not mean < _FALLEN * losses[0]:
        raise VerificationError(
            f"after {len(losses)} steps the loss must be below {_FALLEN} of its first value "
            f"{losses[0]:.3f}; the mean of the last {len(last)} is {mean:.3f}: "
            "try another --learning-rate or more --steps"
        )
    return f"Loss fell from {losses[0]:.3f} to {mean:.3f} nats a byte in {len(losses)} steps"


def _write_losses(
    losses: Sequence[float],
    single: Sequence[float],
    validated: Mapping[int, float],
    output: Path,
    first: int,
) -> None:
    path = output / "losses.json"
    data = {
        "after_step": first,
        "parallel": list(losses),
        "single_device": list(single),
        "validation": dict(validated),
    }
    content = json.dumps(data, indent=1)
    try:
        path.write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"losses are written to a file; {path}: {error.strerror}") from error
    later = {done - first: loss for done, loss in validated.items()}
    draw_losses(losses, output / "losses.png", single_device=single, validation=later)
