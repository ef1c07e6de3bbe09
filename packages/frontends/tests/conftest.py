"""Hypothesis profiles, plans to look at, and a browser to look at their pages."""

import gc
import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import frontends.jax
import jax
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import layer
from frontends.plan.plan_fields import (
    Alternative,
    Collective,
    Conversion,
    ShardedOperator,
    Stage,
    Stored,
    Transfer,
)
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from hypothesis import settings
from shardspec import Mesh, Spec

os.environ.pop("COLUMNS", None)  # pytest-xdist says 80, where there is no terminal

settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What LLVM makes of a program is not ours to test, and takes half of the time of tests of JAX. By
# day XLA also emits fusions by its older emitters: faster, but equal to a bit only in equal shapes.
FAST_TO_COMPILE = "--xla_backend_optimization_level=0"
if os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
    FAST_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_TO_COMPILE}"

# Tests make the same programs anew again and again; JAX then finds those that it has compiled. The
# folder is of one process and of one run, since JAX writes files in it that others could half read.
_COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
jax.config.update("jax_compilation_cache_dir", _COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

frontends.jax.init(8)
jax.devices()  # starts JAX, so that no test's `init` takes devices away from the others


LONG = (
    *("test_processes.py", "test_attention.py", "test_torch_compiled.py", "test_recompute.py"),
    *("test_torch_programs.py", "test_run.py", "test_commands.py", "test_fuzzing.py"),
    *("test_sorted.py", "test_rules.py", "test_torch_trainer.py", "test_unlike_hosts.py"),
)
"""The files that take the longest, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long files, so that no test process is alone at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Freeze what imports have made: the collector, and each capture, would look through it."""
    [n_objects] = map(len, map(gc.get_objects, [None]))  # a variable would hold them all
    if n_objects > 300_000:
        gc.collect()
        gc.freeze()


@pytest.fixture
def example_plan() -> Plan:
    """Two stages of a small GPT, written by hand, with something of everything."""
    params = [f"params['blocks'][{i}]['{name}']" for i in range(3) for name in ("up", "down")]
    first = Stage(
        first_layer=0,
        last_layer=2,
        mesh=Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
        inputs=(
            *(Stored(name, Spec.parse("RS1" if "up" in name else "S1R")) for name in params),
            Stored("params['embedding']", Spec.parse("RR")),
            Stored("opt_state[0].count", Spec.parse("()")),
            *(Stored(f"opt_state[0].mu{name[6:]}", Spec.parse("S01R")) for name in params),
            Stored("batch[0]", Spec.parse("S0R")),
            Stored("mul.77", Spec.parse("S0RR")),
        ),
        outputs=(Stored("add.40", Spec.parse("S0RR")),),
        placements=(
            ShardedOperator("add.40", 0, (Spec.parse("S0RR"),) * 2, (Spec.parse("S0RR"),)),
        ),
        conversions=(Conversion(0, "dot.39", Spec.parse("S0RR+P1"), Spec.parse("S0RR")),),
        collectives=(
            Collective(0, "dot.39", "all_reduce", (1,), 2, 262_144, 262_144, 8, 1.2e-4),
            Collective(1, "dot.80", "all_reduce", (1,), 2, 262_144, 262_144, 8, 1.2e-4),
            Collective(2, "dot.90", "reduce_scatter", (0, 1), 4, 16_384, 49_152, 1, 2e-5),
            Collective(2, "dot.91", "reduce_scatter", (0, 1), 4, 16_384, 49_152, 1, 2e-5),
            Collective(2, "sub.92", "all_gather", (0, 1), 4, 65_536, 49_152, 1, 2e-5),
        ),
        forward_s=0.0061,
        backward_s=0.0122,
        apply_s=0.0008,
        memory_bytes=93_000_000,
    )
    second = Stage(
        first_layer=3,
        last_layer=3,
        mesh=Mesh((4,), ("x",), (4, 5, 6, 7)),
        inputs=(
            Stored("params['head']", Spec.parse("RR")),
            Stored("params['norm']", Spec.parse("R")),
            Stored("opt_state[0].count", Spec.parse("()")),
            Stored("batch[1]", Spec.parse("S0R")),
            Stored("add.40", Spec.parse("S0RR")),
        ),
        outputs=(Stored("mul.77", Spec.parse("S0RR")),),
        placements=(ShardedOperator("mul.77", 1, (Spec.parse("S0RR"),), (Spec.parse("S0RR"),)),),
        conversions=(),
        collectives=(Collective(2, "dot.70", "all_reduce", (0,), 4, 131_072, 196_608, 1, 8e-5),),
        forward_s=0.0043,
        backward_s=0.0085,
        apply_s=0.0002,
        memory_bytes=51_000_000,
    )
    rank3 = Spec.parse("S0RR")
    return Plan(
        step="0123456789abcdef",
        cluster="two-hosts",
        memory_limit_bytes=1 << 30,
        microbatches=8,
        schedule="1f1b",
        stages=(first, second),
        transfers=(
            Transfer(
                "opt_state[0].count", "state", 0, 1, Spec.parse("()"), Spec.parse("()"), 4, 5e-5
            ),
            Transfer("add.40", "forward", 0, 1, rank3, rank3, 262_144, 2.2e-3),
            Transfer("mul.77", "backward", 1, 0, rank3, rank3, 262_144, 2.2e-3),
        ),
        step_s=0.231,
        lower_bound_s=0.118,
        unsharded=("sort",),
        alternatives=(
            Alternative("data_parallel", 0.655, 61_000_000, "2.84 times as long a step"),
            Alternative(
                "megatron",
                None,
                None,
                "axis 0 has 8 devices, and the batch of a microbatch has 4 examples",
            ),
        ),
    )


@pytest.fixture(scope="session")
def priced_plan() -> Plan:
    """Two stages of two devices each, planned and priced, with the sharding of each."""
    step = EXAMPLES["mlp"]().trace().step
    cluster = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
    return Planner(layer(step, 4), cluster, PlanOptions(strategy="equal_layers")).best()


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--dump-dom",
)  # fmt: skip

# With it, whatever the page would fetch is an error on the browser's console.
ALONE = """<head><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"/>"""

# The title is what the browser gives back.
ASK = """<script>addEventListener("load", () => {
document.title = JSON.stringify((() => {%s})());
});</script></body>"""


@pytest.fixture(scope="session")
def open_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], list[str]]:
    """Opens a page in a headless browser, in a window of a width in pixels.

    It returns what is on the browser's console, and the list of texts that a script returns. The
    script is the body of a function, which is called when all of the page is there.
    """
    return partial(_open_page, tmp_path_factory.mktemp("browser"))


def _open_page(folder: Path, page: str, script: str, width: int) -> list[str]:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert browser is not None, (
        f"a plan's page is looked at in a browser; there is none of {', '.join(BROWSERS)}: "
        "install one (apt-get install chromium fonts-dejavu-core)"
    )
    path = folder / "plan.html"
    page = page.replace("<head>", ALONE).replace("</body>", ASK.replace("%s", script))
    path.write_text(page, encoding="utf-8")
    window = (f"--user-data-dir={folder}/user", f"--window-size={width},900")
    result = subprocess.run(
        [browser, *OPTIONS, *window, path.as_uri()], capture_output=True, text=True, timeout=120
    )
    title = re.search(r"<title>(.*?)</title>", result.stdout)
    assert title is not None, result.stderr
    said = re.findall(r':CONSOLE[:(].*?\] "(.*)", source', result.stderr)
    assert title[1].startswith("["), said
    found: list[str] = json.loads(html.unescape(title[1]))
    return [f"console: {text}" for text in said] + found
