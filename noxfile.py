"""All that is checked and made here: `nox` runs the default sessions, `nox -l` lists every one.

A package of this tree is installed from a wheel that is built once and kept until a file of the
package changes; that makes a whole run fast, and `nox -R` sees edits although it installs nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"

PREFIX = "meshwright-"
ROOT = nox.project.load_toml("pyproject.toml")
PROJECTS = {
    path.parent.name: nox.project.load_toml(path)
    for path in sorted(Path("packages").glob("*/pyproject.toml"))
}
COMPILED = [name for name in PROJECTS if Path("packages", name, "CMakeLists.txt").exists()]
# Plain `torch` brings gigabytes of CUDA, and mpi4py needs an MPI library: ask for these by name.
LEFT_OUT_EXTRAS = {"torch", "mpi"}
# A file's tests stay in one process, as they share what they trace and plan. Files begin in their
# order: by the number of their tests, the few that start processes would be last, and one alone.
TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # of torch, in each of the two
XDIST = "pytest-xdist>=3.6"
# Benchmarks against libraries that nothing else here needs: a package's group `baselines` has them.
BASELINES = "test_baselines.py"
NO_COMPILER = (
    "autoshard and crossmesh need a C++17 compiler; install g++ or clang++, or name one in $CXX"
)


def group(name: str, project: dict[str, Any] = ROOT) -> list[str]:
    """Requirements of a dependency group."""
    return list(nox.project.dependency_groups(project, name))


def everything() -> list[str]:
    """Requirements for every package with its extras."""
    extras = {
        name: sorted(table["project"].get("optional-dependencies", {}).keys() - LEFT_OUT_EXTRAS)
        for name, table in PROJECTS.items()
    }
    return [f"{PREFIX}{name}[{','.join(extras[name])}]" for name in PROJECTS]


def local_packages(requirements: list[str]) -> list[str]:
    """Packages of this tree that the requirements name, directly or through one another."""
    todo, found = list(requirements), set()
    for text in todo:  # grows as it is read
        requirement = Requirement(text)
        name = requirement.name.removeprefix(PREFIX)
        if name != requirement.name and name in PROJECTS:
            found.add(name)
            project = PROJECTS[name]["project"]
            extras = project.get("optional-dependencies", {})
            needed = list(project.get("dependencies", []))
            needed += [text for extra in sorted(requirement.extras) for text in extras[extra]]
            todo += [text for text in needed if text not in todo]
    return sorted(found)


def wheel(session: nox.Session, package: str) -> str:
    """Path of a package's wheel, built unless one of its present files is there."""
    folder = Path("packages", package)
    digest = hashlib.sha256(sys.version.encode())
    for part in ("pyproject.toml", "README.md", "CMakeLists.txt", "src", "cpp"):
        for path in sorted([folder / part, *(folder / part).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    target = session.cache_dir / "wheels" / package / digest.hexdigest()[:16]
    if not list(target.glob("*.whl")):
        if (folder / "CMakeLists.txt").exists():
            require_compiler(session)
        shutil.rmtree(target.parent, ignore_errors=True)
        build = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
        session.run_install(*build, str(target), f"./{folder}")
    return str(next(target.glob("*.whl")))


def install(session: nox.Session, requirements: list[str]) -> None:
    """Install requirements, in one pip command with the wheels of this tree's packages."""
    wheels = [wheel(session, package) for package in local_packages(requirements)]
    # pip would compile all of torch and jax, most of which is never imported; what is imported is
    # compiled then, once.
    session.install("--no-compile", *wheels, *requirements)
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    # In a reused environment pip takes a changed wheel of the same version for installed.
    stamp = Path(session.virtualenv.location, "meshwright-wheels.txt")
    if stamp.exists() and stamp.read_text().split("\n") != wheels:
        session.run_install(
            "python", "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", *wheels
        )
    stamp.write_text("\n".join(wheels))


def require_compiler(session: nox.Session) -> None:
    """Stop with one sentence where a core cannot be compiled."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        session.error(NO_COMPILER)


def present(*patterns: str) -> list[str]:
    """Paths that match, sorted."""
    return [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in PROJECTS])
def tests(session: nox.Session, package: str) -> None:
    """Test one package with nothing installed but what it declares."""
    install(session, [PREFIX + package, *group("test", PROJECTS[package]), XDIST])
    session.run(
        "pytest", f"packages/{package}/tests", *TWO_AT_A_TIME, *session.posargs, env=ONE_THREAD
    )


@nox.session
def integration(session: nox.Session) -> None:
    """Test the packages together, installed from wheels, and every example they document."""
    install(session, [*everything(), *group("integration"), XDIST])
    session.run(
        "pytest",
        "integration",
        "-m",
        "not nightly",
        *TWO_AT_A_TIME,
        *session.posargs,
        env=ONE_THREAD,
    )
    session.run("pytest", "--doctest-glob=README.md", *present("packages/*/README.md"))
    left_out = [f"--ignore-glob=*/costmodel/calibrate/{name}.py" for name in LEFT_OUT_EXTRAS]
    session.run("pytest", "--doctest-modules", *left_out, "--pyargs", *PROJECTS)
    benchmarks = present("packages/*/benchmarks/test_*.py")
    session.run(
        "pytest",
        "--benchmark-disable",
        *[b for b in benchmarks if Path(b).name != BASELINES],
        *TWO_AT_A_TIME,
        env=ONE_THREAD,
    )


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in COMPILED])
def cpp(session: nox.Session, package: str) -> None:
    """Test a package's C++ core under the address and undefined-behaviour sanitizers."""
    require_compiler(session)
    if not shutil.which("cmake"):
        session.install("cmake")
    build = str(session.cache_dir / "cpp" / package)
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    options = ("-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={flags}")
    session.run("cmake", "-S", f"packages/{package}", "-B", build, *options, external=True)
    session.run("cmake", "--build", build, "--parallel", "2", external=True)
    session.run(
        "ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", external=True
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check format and style."""
    session.install(*group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types strictly, and the stubs of the C++ cores against the compiled modules."""
    install(session, [*everything(), *group("typecheck")])
    session.run("mypy", *present("packages/*/src"))
    session.run("mypy", "noxfile.py", *present("integration/[a-z]*/"))
    modules = [f"{name}._core" for name in COMPILED]
    session.run("stubtest", "--allowlist", ".ci/stubtest.txt", *modules)


@nox.session
def constraints(session: nox.Session) -> None:
    """Check pins, imports and changelogs between the packages."""
    session.install(*group("constraints"))
    session.run("python", "integration/constraints")


@nox.session(default=False)
def train(session: nox.Session) -> None:
    """Plan and train a GPT on eight virtual devices; arguments after -- go to the command."""
    install(session, everything())
    session.run("python", "-m", "frontends", "train", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure, keep the figures in docs/results and render docs/benchmarks.md from them."""
    compared = [p for p in PROJECTS.values() if "baselines" in p.get("dependency-groups", {})]
    baselines = [text for project in compared for text in group("baselines", project)]
    install(session, [*everything(), *group("integration"), *baselines])
    raw = {}
    for package in PROJECTS:
        if files := present(f"packages/{package}/benchmarks/test_*.py"):
            raw[package] = str(session.cache_dir / f"benchmark-{package}.json")
            session.run("pytest", *files, f"--benchmark-json={raw[package]}", *session.posargs)
    for package, path in raw.items():  # last, as a record is a change of the tree that is measured
        session.run("python", "integration/benchmarks", "keep", package, path)
    session.run("python", "integration/benchmarks", "render")
    session.run("python", "integration/figure7")  # simulated, so it measures nothing


@nox.session(default=False)
def ranking(session: nox.Session) -> None:
    """Measure collectives and strategies on emulated hosts, for docs/costs.md; needs root."""
    install(session, [f"{PREFIX}costmodel[calibrate,plot]", *group("integration")])
    session.run("python", "integration/ranking", *session.posargs)


@nox.session(default=False)
def crossnet(session: nox.Session) -> None:
    """Move tensors between emulated hosts, for docs/crossmesh_figures.md; needs root."""
    install(session, [f"{PREFIX}crossmesh[plot]", *group("integration")])
    session.run("python", "integration/crossnet", *session.posargs)


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """Time schedules between emulated hosts, for docs/several_processes.md; needs root."""
    install(session, [*everything(), *group("integration")])
    session.run("python", "integration/hosts", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation's site into site/."""
    session.install(*group("docs"))
    session.run("mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml")


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """Run what has not passed as it is, for docs/nights.md; a night that is cut goes on.

    That is all tests with 10,000 examples (slow ones 2,000), those marked nightly, and the tests of
    processes 50 times beside a process that keeps a processor busy. By day: -- --times 2 --only
    burner.
    """
    groups = [text for project in PROJECTS.values() for text in group("test", project)]
    install(session, [*everything(), *group("integration"), *groups, "py-spy>=0.4"])
    folder = str(session.cache_dir / "nightly")
    session.run("python", "integration/nightly", folder, *session.posargs)
