from pathlib import Path

import pytest
from constraints.floors import FLOORS, check_floors
from constraints.projects import load_projects

NOT_SHOWN = (
    *("_core", "errors", "fuzzing", "testing"),
    *("testing_geometry", "testing_network", "testing_simulate", "testing_sync"),
    "testing_transport",
)
"""Floors that pages do not list: every package has them, or no reader looks for them."""


@pytest.fixture
def violations(package, write, tmp_path):
    """Returns the violations of a repository with one package and these modules."""

    def found(**modules):
        package("shardspec")
        for name, text in modules.items():
            write(f"packages/shardspec/src/shardspec/{name.replace('__', '/')}.py", text)
        return list(check_floors(load_projects(tmp_path)))

    return found


def test_imports_down_and_on_the_same_floor_are_allowed(violations):
    assert not violations(
        base__axis="import math",
        base__partial="from shardspec.base import axis",
        layout__mesh="from shardspec.base.axis import Axis",
        cli__commands="from shardspec import Mesh",
    )


@pytest.mark.parametrize(
    "source",
    [
        "from shardspec.layout.mesh import Mesh",
        "from shardspec.layout import mesh",
        "import shardspec.layout.mesh",
        "from ..layout import mesh",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shardspec.layout.mesh",
        "def f():\n    from shardspec.layout.mesh import Mesh",
        "from shardspec import Mesh",
    ],
)
def test_an_import_upwards_is_found(violations, source):
    (one,) = violations(base__axis=source, layout__mesh="")
    assert "a module imports from its own floor and those below; shardspec.base.axis" in one


def test_a_cycle_of_imports_is_found(violations):
    (one,) = violations(
        base__axis="def f():\n    from shardspec.base.partial import P",
        base__partial="from shardspec.base.axis import A",
    )
    assert "modules do not import each other in a cycle; got" in one


def test_a_folder_may_have_floors_of_its_own(package, write, tmp_path):
    package("frontends")
    source = "packages/frontends/src/frontends"
    for name, text in {
        "__init__": "",
        "base/lines": "",
        "jax/__init__": "",
        "torch/__init__": "from frontends.torch.api import step",
        "torch/base/calls": "import frontends.base.lines\nfrom frontends.torch.api import step",
        "torch/api/step": "from frontends.torch.base import lists",
        "torch/base/lists": "",
    }.items():
        write(f"{source}/{name}.py", text)
    (one,) = check_floors(load_projects(tmp_path))
    assert "those below; frontends.torch.base.calls imports frontends.torch.api.step" in one


def test_every_module_is_on_a_floor(violations):
    (one,) = violations(attic="")
    assert "a module is on a floor of shardspec" in one
    assert one.endswith("got 'attic'")


def test_no_folder_hides_a_public_name(violations, write, tmp_path):
    assert not violations(layout__mesh="")
    write("packages/shardspec/src/shardspec/layout/__init__.py")
    write("packages/shardspec/src/shardspec/__init__.py", '__all__ = ["layout"]')
    (one,) = check_floors(load_projects(tmp_path))
    assert "no folder has the name of a public name; got 'layout'" in one


def test_floors_have_one_place_each():
    for floors in FLOORS.values():
        assert len(set(floors.split())) == len(floors.split())


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_pages_show_the_floors(page):
    text = (Path(__file__).parents[3] / page).read_text().replace("`", "")
    for floors in FLOORS.values():
        shown = [each for each in floors.split() if each not in (*NOT_SHOWN, ".")]
        assert " · ".join(shown) in text
