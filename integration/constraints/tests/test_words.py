import re

import pytest
from constraints.projects import load_projects
from constraints.words import check_words


@pytest.fixture
def violations(package, write, tmp_path):
    """Returns the violations of three packages with these modules and these glossary rows."""

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
def test_a_word_that_names_something_else_is_found(violations, name):
    (one,) = violations("## shardspec", f"| **mesh** | Devices. | `shardspec.{name}` |")
    assert re.search(
        rf"glossary.md:2: a name in the glossary is defined .*; got shardspec.{name}$", one
    )


def test_a_word_of_another_package_than_its_heading_is_found(violations):
    (one,) = violations("## autoshard", "| **mesh** | Devices. | `shardspec.Mesh` |")
    assert "under the package that defines it; got shardspec.Mesh under autoshard" in one


def test_a_word_without_a_name_in_the_code_is_found(violations):
    (one,) = violations("## shardspec", "| **mesh** | Devices of a `Mesh`. | not yet |")
    assert "a word names its class or function in the code; **mesh** names none" in one


def test_a_word_is_explained_once(violations):
    row = "| **mesh** | Devices. | `shardspec.Mesh` |"
    (one,) = violations("## shardspec", row, row)
    assert "a word is explained once; got **mesh** 2 times" in one


@pytest.mark.parametrize("module", ["autoshard__grid", "shardspec__grid"])
def test_two_classes_with_the_same_name_are_found(violations, module):
    (one,) = violations(**{module: "class Mesh: ..."})
    assert "no two public classes have the same name" in one
    assert {"shardspec.mesh", module.replace("__", ".")} < set(re.findall(r"[\w.]+", one))


def test_an_exported_type_and_a_class_do_not_have_the_same_name(violations):
    assert not violations(autoshard__a="Mesh = int")
    (one,) = violations(shardspec__a="Mesh = int")
    assert one.endswith("Mesh is in shardspec.a, shardspec.mesh")


def test_private_and_inner_classes_may_have_the_same_name(violations):
    assert not violations(
        autoshard__a="class _Mesh: ...\nclass A:\n    class Mesh: ...",
        shardspec__a="class _Mesh: ...",
    )


def test_classes_that_a_row_says_are_the_same_may_have_the_same_name(violations):
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
