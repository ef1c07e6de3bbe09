"""Steps are measured beside `jax.jit` and equal to it, and the page says what the records do."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median

import jax
import numpy as np
import pytest
from costmodel import Cluster
from frontends import Plan
from frontends.jax import plan_for
from gpu.measure import CASES, kernels_of, measure
from gpu.products import errors, shapes
from gpu.report import page, records
from zoo import gpt

DOCS = Path(__file__).resolve().parents[3] / "docs"
ONE = Cluster.preset("h200-sxm").resized(n_hosts=1, devices_per_host=1)


def test_a_step_is_equal_to_that_of_jit_and_on_the_page() -> None:
    """On this machine's processor, whose times mean nothing beside a GPU's prediction."""
    tiny = measure("tiny", lambda: gpt.make(gpt.CONFIGS["gpt-tiny"], batch=4), ONE)
    assert tiny.difference < 1e-5
    assert 0 < tiny.predicted_kernels < 1000
    document = {"preset": "h200-sxm", "device": "none", "jax": "0", "rows": [asdict(tiny)]}
    assert f"| tiny | {1e3 * tiny.jit_s:.1f} ms |" in page([document], [])


def test_kernels_of_a_program_are_its_fusions_and_calls() -> None:
    doubled = jax.jit(lambda x: (x @ x + 1).sum()).lower(jax.numpy.ones((8, 8))).compile()
    assert 1 <= kernels_of(doubled.as_text() or "") <= 3


def test_the_page_is_that_of_the_records() -> None:
    steps, products = records(DOCS / "results" / "gpu")
    assert steps
    assert products
    assert (DOCS / "gpu.md").read_text(encoding="utf-8") == page(steps, products)


def test_presets_predict_the_products_that_were_measured() -> None:
    _, products = records(DOCS / "results" / "gpu")
    for document in products:
        assert [tuple(row[:5]) for row in document["rows"]] == list(shapes())
        assert median(errors(document)) < 0.07
        assert np.quantile(errors(document), 0.9) < 0.3


@pytest.mark.nightly
def test_todays_prices_are_within_a_quarter_of_what_was_measured() -> None:
    """The steps themselves, planned again: prices that drift from the GPU's are seen here."""
    names = ("GPT-2 small", "ViT-B/16")
    for path in (DOCS / "results" / "gpu").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        cluster = Cluster.preset(record["preset"]).resized(n_hosts=1, devices_per_host=1)
        for row in record["rows"]:
            if row["name"].startswith(names):
                predicted_s = planned(row["name"], cluster).step_s
                assert abs(predicted_s / row["ours_s"] - 1) < 0.25, row["name"]


def planned(name: str, cluster: Cluster) -> Plan:
    """The plan of a case, which multiplies as it does on the GPU."""
    example = CASES[name]()
    with jax.default_matmul_precision("highest"):
        return plan_for(example.step, example.arguments, cluster, microbatches=1).plan
