"""Plan three models for three clusters, to show what plans look like; nothing is computed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

from costmodel import Cluster
from rich.console import Console
from rich.table import Table
from shardspec.amounts import bytes_text, seconds_text

from frontends.answer.plan import Plan
from frontends.cli.demo.models import MODELS
from frontends.cli.demo.train import TrainingJob, make_folder
from frontends.jax import plan_for
from frontends.report.html import write_page
from frontends.report.text import stage_table
from frontends.search.plan_options import PlanOptions

_MODELS = ("gpt-350m", "gpt-1.3b", "gpt-2.6b")
_CLUSTERS = ("p3.16xlarge", "a2-megagpu-16g", "h100-sxm")

# A plan of two blocks shows what one of all blocks shows, in a tenth of the time.
_BLOCKS, _BATCH, _DEVICES = 2, 64, 4
_OPTIONS = PlanOptions(microbatches=8, strategy="search")


def tour(output: Path, console: Console) -> tuple[Path, ...]:
    """Plan every pair, print its stages, and write its page.

    Args:
        output: The folder of the pages; it is created if it does not exist.
        console: Where to print.

    Returns:
        The pages, in the order of the pairs.

    Raises:
        OutputError: The folder cannot be written to.
    """
    make_folder(output)
    console.print(
        f"{_BLOCKS} blocks of each model, {_BATCH} sequences a step, on {_DEVICES} devices of one "
        "host. Nothing runs: this machine needs none of these devices."
    )
    summary = Table(title="All pairs", title_justify="left", box=None, pad_edge=False)
    for column in ("model", "cluster", "stages on", "a step", "times the bound", "memory", "page"):
        summary.add_column(column)
    pages = []
    for model, preset in product(_MODELS, _CLUSTERS):
        plan = _plan(model, Cluster.preset(f"{preset}:1").resized(devices_per_host=_DEVICES))
        pages.append(output / f"{model}_{preset}.html")
        write_page(plan, pages[-1])
        console.print("", f"{model} on {preset}", "", stage_table(plan), sep="\n")
        meshes = " + ".join("x".join(map(str, stage.mesh.shape)) for stage in plan.stages)
        bound = f"{plan.step_s / plan.lower_bound_s:.2f}"
        figures = (seconds_text(plan.step_s), bound, bytes_text(plan.memory_bytes))
        summary.add_row(model, preset, meshes, *figures, pages[-1].name)
    console.print("", summary, "", sep="\n")
    console.print(f"Pages: {output.resolve()}", soft_wrap=True)
    return tuple(pages)


def _plan(model: str, cluster: Cluster) -> Plan:
    config = replace(MODELS[model].config, n_layers=_BLOCKS)
    job = TrainingJob(config, cluster, 1, _BATCH, 1e-3, 0, _OPTIONS)
    return plan_for(job.train_step, job.shapes(), cluster, **_OPTIONS.keywords()).plan
