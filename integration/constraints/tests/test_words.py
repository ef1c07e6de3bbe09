import re

import pytest
from constraints import words
from constraints.projects import load_projects
from constraints.words import check_words


@pytest.fixture
def violations(package, write, tmp_path, monkeypatch):
    """Those of a tree of three packages with a glossary of these rows, and these modules."""
    monkeypatch.setattr(words, "NOT_YET", set())

    def found(*rows, **modules):
        for name in ("autoshard", "shardspec", "frontends"):
            package(name)
        write("packages/shardspec/src/shardspec/__init__.py", '__all__ = ["Mesh"]')
        write("packages/shardspec/src/shardspec/mesh.py", "class Mesh: ...")
        for name, text in modules.items():
            path = name.replace("__", "/")
            write(f"packages/{path.partition('/')[0]}/src/{path}.py", text)
        write("docs/glossary.md", "\n".join(rows))
        return list(check_words(load_projects(tmp_path), tmp_path))

    return found


def test_words_name_what_is_public_or_defined(violations):
    assert not violations(
        "# Glossary",
        "## shardspec",
        "| word | what it is | in the code |",
        "|---|---|---|",
        "| **mesh** | Devices, as `Spec` has them. | `shardspec.Mesh`, `shardspec.mesh.Mesh` |",
        "## `autoshard`",
        "| **pin** | A choice. | `autoshard.pin.Pin`, `autoshard.pin.pins_of` |",
        autoshard__pin="Pin = int | str\ndef pins_of(): ...",
    )


@pytest.mark.parametrize("name", ["Grid", "mesh.Grid", "grid.Mesh"])
def test_and_nothing_else(violations, name):
    (one,) = violations("## shardspec", f"| **mesh** | Devices. | `shardspec.{name}` |")
    assert re.search(
        rf"glossary.md:2: what a word names is public there, .*; got shardspec.{name}$", one
    )


def test_of_the_package_that_it_is_under(violations):
    (one,) = violations("## autoshard", "| **mesh** | Devices. | `shardspec.Mesh` |")
    assert "a word is under the package whose it is, autoshard; got shardspec.Mesh" in one


def test_a_word_is_somewhere_in_the_code(violations):
    (one,) = violations("## shardspec", "| **mesh** | Devices of a `Mesh`. | not yet |")
    assert "names the class or function that it is; **mesh** names none" in one


def test_a_word_is_explained_once(violations):
    row = "| **mesh** | Devices. | `shardspec.Mesh` |"
    (one,) = violations("## shardspec", row, row)
    assert "a word is explained once; got **mesh** 2 times" in one


@pytest.mark.parametrize("module", ["autoshard__grid", "shardspec__grid"])
def test_two_classes_are_not_called_alike(violations, module):
    (one,) = violations(**{module: "class Mesh: ..."})
    assert "a public class is called like no other" in one
    assert {"shardspec.mesh", module.replace("__", ".")} < set(re.findall(r"[\w.]+", one))


def test_nor_is_a_type_that_a_package_exports(violations):
    assert not violations(autoshard__a="Mesh = int")
    (one,) = violations(shardspec__a="Mesh = int")
    assert one.endswith("Mesh is in shardspec.a, shardspec.mesh")


def test_private_and_inner_classes_may_be(violations):
    assert not violations(
        autoshard__a="class _Mesh: ...\nclass A:\n    class Mesh: ...",
        shardspec__a="class _Mesh: ...",
    )


def test_unless_a_row_says_that_they_are_the_same(violations):
    assert not violations(
        "## Classes",
        "| `Mesh` | Devices. | `frontends.jax`, `shardspec` |",
        frontends__jax="class Mesh: ...",
    )


@pytest.mark.parametrize(
    "modules",
    [
        {},
        {"frontends__torch": "class Mesh: ..."},
        {"frontends__jax__a": "class Mesh: ...", "frontends__jax__b": "class Mesh: ..."},
        {"frontends__jax__a": "class Mesh: ...", "autoshard__a": "class Mesh: ..."},
    ],
    ids=["missing", "elsewhere", "twice", "once more"],
)
def test_a_row_has_all_places_and_each_defines_it_once(violations, modules):
    (one,) = violations("| `Mesh` | Devices. | `frontends.jax`, `shardspec` |", **modules)
    assert "a shared class is defined once in each place that its row lists" in one


def test_names_of_frontends_may_wait(violations, monkeypatch):
    monkeypatch.setattr(words, "NOT_YET", {"Mesh"})
    assert not violations(frontends__a="class Mesh: ...", frontends__b="class Mesh: ...")


def test_but_not_those_of_other_packages(violations, monkeypatch):
    monkeypatch.setattr(words, "NOT_YET", {"Mesh"})
    (one,) = violations(frontends__a="class Mesh: ...", autoshard__a="class Mesh: ...")
    assert "a public class is called like no other" in one


def test_what_waits_still_clashes(violations, monkeypatch):
    monkeypatch.setattr(words, "NOT_YET", {"Mesh"})
    (one,) = violations()
    assert "Mesh has one meaning now; take it out of NOT_YET" in one
