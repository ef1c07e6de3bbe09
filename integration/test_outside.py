"""Workflows name sessions that exist, and forms and metadata are valid."""

import ast
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = sorted(
    set(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def sessions() -> set[str]:
    """The names of the nox sessions, also of those with a package."""
    names = set()
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any(text.startswith("nox.session") for text in decorators):
                names.add(node.name)
                if any(text.startswith("nox.parametrize") for text in decorators):
                    names |= {f"{node.name}({package})" for package in PACKAGES}
    return names


def expanded(command: str, matrix: dict[str, list[str]]) -> list[str]:
    """A command for each combination of the matrix."""
    combinations = itertools.product(*matrix.values())
    commands = []
    for values in combinations:
        text = command
        for key, value in zip(matrix, values, strict=True):
            text = text.replace(f"${{{{ matrix.{key} }}}}", value)
        commands.append(text)
    return commands


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow by name."""
    return yaml.safe_load(workflow.read_text())["jobs"]


def test_there_are_workflows_and_forms() -> None:
    assert {path.stem for path in WORKFLOWS} == {"tests", "wheels", "docs"}
    assert {path.stem for path in FORMS} == {"bug", "feature", "plan_is_wrong"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_only_sessions_that_exist(workflow: Path) -> None:
    named = set()
    for job in jobs(workflow).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            for command in expanded(step.get("run", ""), matrix):
                if command.startswith("nox "):
                    named.add(re.fullmatch(r'nox -s "?([\w()]+)"?( -- .*)?', command)[1])
    assert named
    assert named <= sessions()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_ends(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}
    for job in jobs(workflow).values():
        assert job["runs-on"]
        assert 0 < job["timeout-minutes"] <= 360
        for step in job["steps"]:
            assert (
                re.fullmatch(r"[\w-]+/[\w-]+@v[\d.]+", step["uses"])
                if "uses" in step
                else step["run"]
            )


def test_the_tests_run_for_every_package_on_every_python() -> None:
    matrix = jobs(ROOT / ".github/workflows/tests.yml")["packages"]["strategy"]["matrix"]
    assert matrix == {"python": PYTHONS, "package": PACKAGES}


def test_wheels_are_built_for_every_compiled_package_and_every_python() -> None:
    job = jobs(ROOT / ".github/workflows/wheels.yml")["compiled"]
    compiled = [name for name in PACKAGES if (ROOT / f"packages/{name}/CMakeLists.txt").exists()]
    assert job["strategy"]["matrix"]["package"] == compiled
    (build,) = [
        step["env"]["CIBW_BUILD"] for step in job["steps"] if "cibuildwheel" in step.get("uses", "")
    ]
    assert build.split() == [f"cp{python.replace('.', '')}-manylinux_*" for python in PYTHONS]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_say_which_pythons_are_tested(package: str) -> None:
    text = (ROOT / f"packages/{package}/pyproject.toml").read_text()
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text) == PYTHONS


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_can_be_filled_in(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= content.keys()
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))
    for part in content["body"]:
        assert part["type"] in ("textarea", "dropdown", "input", "checkboxes")
        assert part["attributes"]["label"]
        assert all(isinstance(each, str) for each in part["attributes"].get("options", []))


def test_the_citation_has_what_its_format_demands() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    "page",
    ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", ".github/PULL_REQUEST_TEMPLATE.md"],
)
def test_relative_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text())
    assert links == [link for link in links if (ROOT / page).parent.joinpath(link).exists()]
