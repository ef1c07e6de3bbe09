import pytest
from constraints.assertions import check_assertions
from constraints.projects import load_projects


@pytest.fixture
def violations(package, write, tmp_path):
    """Returns the violations of a package with one module."""

    def found(name, text):
        package("shardspec")
        write(f"packages/shardspec/src/shardspec/{name}.py", text)
        return list(check_assertions(load_projects(tmp_path)))

    return found


def test_an_assert_in_a_module_is_found(violations):
    (one,) = violations("base/axis", "def f(x):\n    assert x is not None, 'there'\n")
    assert one.endswith(
        "axis.py:2: an impossible state is excluded by types or raises an error of "
        "errors.py; got assert x is not None"
    )


@pytest.mark.parametrize("name", ["testing", "testing/plans", "testing_network", "jax/fuzzing"])
def test_testing_and_fuzzing_modules_may_assert(violations, name):
    assert not violations(name, "assert True")


def test_assert_in_a_docstring_and_assert_never_are_no_violations(violations):
    assert not violations("mesh", '"""\n>>> assert True\n"""\n\n\ndef f(x):\n    assert_never(x)\n')
