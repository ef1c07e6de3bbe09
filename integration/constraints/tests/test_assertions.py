import pytest
from constraints.assertions import check_assertions
from constraints.projects import load_projects


@pytest.fixture
def violations(package, write, tmp_path):
    """Those of a package with one module."""

    def found(name, text):
        package("shardspec")
        write(f"packages/shardspec/src/shardspec/{name}.py", text)
        return list(check_assertions(load_projects(tmp_path)))

    return found


def test_a_module_asserts_nothing(violations):
    (one,) = violations("base/axis", "def f(x):\n    assert x is not None, 'there'\n")
    assert one.endswith(
        "axis.py:2: what cannot be is kept out by types, or is an error of "
        "errors.py; got assert x is not None"
    )


@pytest.mark.parametrize("name", ["testing", "testing/plans", "testing_network", "jax/fuzzing"])
def test_judges_do(violations, name):
    assert not violations(name, "assert True")


def test_docstrings_and_types_do(violations):
    assert not violations("mesh", '"""\n>>> assert True\n"""\n\n\ndef f(x):\n    assert_never(x)\n')
