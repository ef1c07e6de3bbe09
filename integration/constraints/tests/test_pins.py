from constraints.pins import check_pins
from constraints.projects import load_projects


def test_a_pin_that_admits_the_version_is_no_violation(tmp_path, package):
    package("shardspec", version="0.1.7")
    package("costmodel", requires=["meshwright-shardspec~=0.1.0", "numpy>=99"])
    assert not list(check_pins(load_projects(tmp_path)))


def test_a_bump_that_a_dependent_cannot_follow_is_found(tmp_path, package):
    package("shardspec", version="0.2.0")
    package("costmodel", requires=["meshwright-shardspec~=0.1.0"])
    (violation,) = check_pins(load_projects(tmp_path))
    assert "meshwright-shardspec~=0.1.0 does not admit 0.2.0" in violation
    assert "packages/costmodel/pyproject.toml" in violation


def test_pins_of_extras_and_test_groups_count(tmp_path, package):
    package("shardspec", version="0.2.0")
    pin = ["meshwright-shardspec==0.1.0"]
    package("costmodel", extras={"more": pin}, test=pin)
    assert len(list(check_pins(load_projects(tmp_path)))) == 2


def test_a_sibling_that_is_not_there_is_found(tmp_path, package):
    package("costmodel", requires=["meshwright-shardspecs"])
    (violation,) = check_pins(load_projects(tmp_path))
    assert "names a folder of packages/; got meshwright-shardspecs" in violation
