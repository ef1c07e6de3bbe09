import sys

import pytest
from crossmesh import MissingExtraError, PlanError, plan
from crossmesh import picture as draw
from crossmesh.report.cases import cases
from crossmesh.testing import transfers
from hypothesis import given, settings
from shardspec import Layout, Mesh, Spec


def case_4():
    case = cases()[3]
    return plan(case.src, case.dst, "float32", case.hosts)


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_draws_the_same_file_each_time(tmp_path, suffix, start):
    paths = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        draw(case_4(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(start)


@settings(max_examples=5)
@given(transfers())
def test_draws_every_plan(tmp_path_factory, transfer):
    made = plan(
        transfer.src, transfer.dst, transfer.dtype, transfer.hosts, transfer.links, steps=1000
    )
    path = tmp_path_factory.mktemp("drawn") / "plan.svg"
    draw(made, path)
    assert path.stat().st_size > 0


def test_draws_more_hosts_than_have_labels(tmp_path):
    src = Layout((40,), Mesh((40,), ("x",)), Spec.parse("S0"))
    dst = Layout((40,), Mesh((40,), ("x",), tuple(range(40, 80))), Spec.parse("S0"))
    draw(plan(src, dst, "int8"), tmp_path / "wide.svg")
    assert "80 hosts, out and in" in drawn_texts(tmp_path / "wide.svg")


def drawn_texts(path):
    """The texts in an SVG: Matplotlib draws them as paths, and keeps each one in a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip().removeprefix("<!-- ").removesuffix(" -->") for line in lines]


def test_shows_bytes_between_hosts_and_how_long_it_takes(tmp_path):
    draw(case_4(), tmp_path / "4.svg")
    texts = drawn_texts(tmp_path / "4.svg")
    assert texts.count("512 MiB") == 4
    assert "0.5 t, no plan takes less" in texts
    assert {"out of 0", "into 3", "t; dotted: lower bound"} <= set(texts)


@pytest.mark.parametrize("name", ["plan", "plan.pdf", "plan.png.txt"])
def test_rejects_other_suffixes(tmp_path, name):
    with pytest.raises(PlanError, match=r"ends in \.png or \.svg; got '.*plan"):
        draw(case_4(), tmp_path / name)


def test_says_how_to_install_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["crossmesh.report.picture"], "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'meshwright-crossmesh\[plot\]'") as e:
        draw(case_4(), tmp_path / "plan.png")
    assert e.value.extra == "plot"
    assert isinstance(e.value, ImportError)
