import pytest
from constraints.imports import check_imports, find_imports
from constraints.projects import load_projects


def violations(root):
    return [text.removeprefix(f"{root}/packages/") for text in check_imports(load_projects(root))]


def test_imports_are_found_with_their_context():
    source = """
import a.b, c
from d.e import f as g
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import h
class K:
    import i
    def method(self):
        from j import k
"""
    imports = [(item.module, item.names, item.deferred) for item in find_imports(source)]
    assert imports == [
        ("a.b", (), False),
        ("c", (), False),
        ("d.e", ("f",), False),
        ("typing", ("TYPE_CHECKING",), False),
        ("h", (), True),
        ("i", (), False),
        ("j", ("k",), True),
    ]


def test_relative_imports_are_resolved_in_their_package():
    source = "from . import a\nfrom .b import c\nfrom ..d import e"
    modules = [item.module for item in find_imports(source, package="top.sub")]
    assert modules == ["top.sub", "top.sub.b", "top.d"]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("shardspec", "costmodel"),
        ("costmodel", "autoshard"),
        ("stagecut", "crossmesh"),
        ("pipesched", "crossmesh"),
        ("autoshard", "jax"),
        ("stagecut", "torch"),
        ("crossmesh", "frontends"),
    ],
)
def test_an_arrow_the_other_way_is_found_even_if_declared(tmp_path, package, write, name, module):
    declared = module if module in ("jax", "torch") else f"meshwright-{module}"
    package(name, requires=[declared])
    write(f"packages/{name}/src/{name}/a.py", f"def f():\n    import {module}.x")
    texts = violations(tmp_path)
    assert [text.split(": ")[0] for text in texts] == [
        f"{name}/pyproject.toml",
        f"{name}/src/{name}/a.py:2",
    ]
    assert all(text.endswith(f"(docs/architecture.md); got {module}") for text in texts)


def test_what_is_declared_and_allowed_is_no_violation(tmp_path, package, write):
    package(
        "crossmesh",
        requires=["meshwright-shardspec~=0.1.0", "NumPy>=1"],
        extras={"jax": ["jax"], "testing": ["hypothesis"]},
        test=["pytest"],
    )
    write("packages/crossmesh/src/crossmesh/__init__.py", "from .a import f\nimport numpy, os")
    write("packages/crossmesh/src/crossmesh/a.py", "from shardspec import Mesh\nfrom . import b")
    write("packages/crossmesh/src/crossmesh/b.py", "def f():\n    import jax")
    write("packages/crossmesh/src/crossmesh/testing.py", "import hypothesis")
    write(
        "packages/crossmesh/tests/test_a.py", "import pytest, helper\nfrom crossmesh import _core"
    )
    write("packages/crossmesh/tests/helper.py", "import numpy")
    write("packages/crossmesh/benchmarks/test_b.py", "import torch")
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from shardspec._spec import Spec",
        "import shardspec._spec",
        "from shardspec import _parse",
        "from shardspec import Spec, _spec",
    ],
)
@pytest.mark.parametrize("folder", ["src/costmodel", "tests", "benchmarks"])
def test_a_siblings_private_name_is_found(tmp_path, package, write, folder, statement):
    package("costmodel", requires=["meshwright-shardspec"])
    write(f"packages/costmodel/{folder}/a.py", f"from shardspec import __version__\n{statement}")
    (violation,) = violations(tmp_path)
    assert violation.startswith(f"costmodel/{folder}/a.py:2: a package uses public names of others")


@pytest.mark.parametrize("module", ["shardspec", "numpy.linalg", "PIL.Image"])
def test_an_import_that_is_not_declared_is_found(tmp_path, package, write, module):
    package("costmodel", test=["numpy", "pillow", "meshwright-shardspec"])
    write("packages/costmodel/src/costmodel/a.py", f"import {module}")
    (violation,) = violations(tmp_path)
    assert f"an import is declared in pyproject.toml; got {module}; declare" in violation


def test_a_test_may_import_what_its_group_declares_and_no_more(tmp_path, package, write):
    package("pipesched", test=["pytest"])
    write("packages/pipesched/tests/test_a.py", "import pytest\nimport hypothesis")
    (violation,) = violations(tmp_path)
    assert violation.startswith("pipesched/tests/test_a.py:2: an import is declared")


@pytest.mark.parametrize("statement", ["from . import b", "from .b import f", "import pipesched.b"])
@pytest.mark.parametrize("root", ["__init__", "__main__"])
def test_a_package_that_imports_only_with_an_extra_is_found(
    tmp_path, package, write, root, statement
):
    package("pipesched", extras={"plot": ["matplotlib"]})
    write(f"packages/pipesched/src/pipesched/{root}.py", "import pipesched.sub.a")
    write("packages/pipesched/src/pipesched/sub/__init__.py", statement.replace(" .", " .."))
    write("packages/pipesched/src/pipesched/sub/a.py")
    write("packages/pipesched/src/pipesched/b.py", "import matplotlib.pyplot")
    (violation,) = violations(tmp_path)
    assert "b.py:1: a package imports without its extras; got matplotlib.pyplot of" in violation


def test_a_package_that_the_architecture_does_not_know_is_found(tmp_path, package):
    package("newcomer")
    (violation,) = violations(tmp_path)
    assert "newcomer: a package has a row in MAY_USE" in violation


def test_what_all_tests_share_is_for_tests_only(tmp_path, package, write):
    package("costmodel")
    write("packages/costmodel/tests/test_a.py", "import launching")
    write("packages/costmodel/src/costmodel/a.py", "import launching")
    (text,) = violations(tmp_path)
    assert text.startswith("costmodel/src/costmodel/a.py:1: an import is declared")
