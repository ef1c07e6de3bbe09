"""Pictures: their contents, and that equal shardings give equal files."""

import re
import sys

import pytest
from autoshard import Graph, GraphBuilder, MissingExtraError, Phase, PictureError, picture, shard
from autoshard.picture import axis_roles
from costmodel import Cluster
from shardspec import Mesh


def test_an_axis_splits_a_dim_or_reduces_or_does_nothing():
    graph = GraphBuilder()
    x, up, down = graph.input("x", 1, 512), *(graph.parameter(n, 512, 512) for n in ("w1", "w2"))
    graph.output(graph.dot(graph.apply("gelu", graph.dot(x, up)), down), whole=True)
    found = shard(graph.build(), Mesh((1, 4), ("data", "model")), Cluster.preset("two-hosts"))
    assert axis_roles(found) == [
        ["nothing", "nothing", "nothing"],
        ["splits dim 1", "splits dim 1", "reduces: results are partial"],
    ]


def test_a_picture_names_axes_phases_kinds_and_the_limit(mlp, tmp_path):
    picture(mlp, tmp_path / "mlp.svg")
    words = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "mlp.svg").read_text()))
    assert {"data", "model", "forward (2 times)", "backward (2 times)", "apply"} <= words
    assert {"compute", "all-reduce", "all-gather"} <= words
    assert {"parameter", "optimizer state", "gradient", "activation", "limit"} <= words


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_sharding_gives_the_same_file(mlp, tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        picture(mlp, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_graph_without_operators_is_drawn(tmp_path):
    empty = Graph((Phase("step"),), (), (), (), ())
    picture(shard(empty, Mesh((2,), ("x",)), Cluster.preset("two-hosts")), tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").stat().st_size > 0


def test_other_suffixes_are_errors(mlp):
    with pytest.raises(PictureError, match=r"ends in \.png or \.svg; got 'mlp\.pdf'"):
        picture(mlp, "mlp.pdf")


def test_missing_matplotlib_says_how_to_get_it(mlp, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright-autoshard\[plot\]'"):
        picture(mlp, "mlp.png")
