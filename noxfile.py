"""All checks and generated files of this repository, as nox sessions.

`nox` runs the default sessions, and `nox -l` lists all of them. A session installs the packages of
this repository from wheels, which are built once and kept until a file of the package changes; this
makes a whole run fast.
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
# Plain `torch` brings gigabytes of CUDA, and mpi4py needs an MPI library, so these two have to be
# asked for by name.
LEFT_OUT_EXTRAS = {"torch", "mpi"}
# All tests of a file run in one process, because they share traces and plans. Files begin in the
# order in which they are collected, which is that of their names, or begins with long files. If
# they were sorted by their number of tests, the few files that start processes would come last, and
# one of them would run alone at the end.
BY_DAY = ("-m", "not nightly", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for torch, in each of the two test processes
XDIST = "pytest-xdist>=3.6"
# Benchmarks against libraries that only they need; these are in a package's group `baselines`.
BASELINES = "test_baselines.py"
NO_COMPILER = (
    "autoshard and crossmesh need a C++17 compiler; install g++ or clang++, or name one in $CXX"
)


def group(name: str, project: dict[str, Any] = ROOT) -> list[str]:
    """The requirements of a dependency group."""
    return list(nox.project.dependency_groups(project, name))


def everything() -> list[str]:
    """The requirements for every package with its extras, except those left out."""
    extras = {
        name: sorted(table["project"].get("optional-dependencies", {}).keys() - LEFT_OUT_EXTRAS)
        for name, table in PROJECTS.items()
    }
    return [f"{PREFIX}{name}[{','.join(extras[name])}]" for name in PROJECTS]


def local_packages(requirements: list[str]) -> list[str]:
    """The packages of this repository that the requirements name, directly or indirectly."""
    todo, packages = list(requirements), set()
    for text in todo:  # the loop appends to this list
        requirement = Requirement(text)
        name = requirement.name.removeprefix(PREFIX)
        if name != requirement.name and name in PROJECTS:
            packages.add(name)
            project = PROJECTS[name]["project"]
            extras = project.get("optional-dependencies", {})
            needed = list(project.get("dependencies", []))
            needed += [text for extra in sorted(requirement.extras) for text in extras[extra]]
            todo += [text for text in needed if text not in todo]
    return sorted(packages)


def wheel(session: nox.Session, package: str) -> str:
    """The path of a package's wheel, which is built unless one of the same files exists."""
    folder = Path("packages", package)
    digest = hashlib.sha256(f"{sys.version}{session.python or ''}".encode())
    for part in ("pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", "src", "cpp"):
        for path in sorted([folder / part, *(folder / part).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    target = session.cache_dir / "wheels" / package / digest.hexdigest()[:16]
    if not list(target.glob("*.whl")):
        if (folder / "CMakeLists.txt").exists():
            require_compiler(session)
        build = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
        session.run_install(*build, str(target), f"./{folder}")
        if not list(target.glob("*.whl")):  # `nox -R` installs nothing
            session.error(f"{folder} has changed since it was installed; run nox -r to install it")
        for other in target.parent.iterdir():
            if other != target:
                shutil.rmtree(other)
    return str(next(target.glob("*.whl")))


def install(session: nox.Session, requirements: list[str]) -> None:
    """Install requirements with one pip command, this repository's packages from their wheels."""
    wheels = [wheel(session, package) for package in local_packages(requirements)]
    # pip would compile all of torch and jax, most of which is never imported. Without that, Python
    # compiles each module once, when it is first imported.
    session.install("--no-compile", *wheels, *requirements)
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    # In a reused environment, pip does not install a changed wheel of the same version.
    stamp = Path(session.virtualenv.location, "meshwright-wheels.txt")
    if stamp.exists() and stamp.read_text().split("\n") != wheels:
        session.run_install(
            "python", "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", *wheels
        )
    stamp.write_text("\n".join(wheels))


def require_compiler(session: nox.Session) -> None:
    """Stop with a one-line error if there is no C++ compiler."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        session.error(NO_COMPILER)


def present(*patterns: str) -> list[str]:
    """The paths that match the patterns, sorted for each pattern."""
    return [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in PROJECTS])
def tests(session: nox.Session, package: str) -> None:
    """Test one package with only the requirements installed that it declares."""
    install(session, [PREFIX + package, *group("test", PROJECTS[package]), XDIST])
    session.run("pytest", f"packages/{package}/tests", *BY_DAY, *session.posargs, env=ONE_THREAD)


@nox.session
def integration(session: nox.Session) -> None:
    """Test the packages together, installed from wheels, and all examples in the documentation."""
    install(session, [*everything(), *group("integration"), XDIST])
    session.run("pytest", "integration", *BY_DAY, *session.posargs, env=ONE_THREAD)
    session.run("pytest", "--doctest-glob=README.md", *present("packages/*/README.md"))
    left_out = [f"--ignore-glob=*/costmodel/calibrate/{name}.py" for name in LEFT_OUT_EXTRAS]
    session.run("pytest", "--doctest-modules", *left_out, "--pyargs", *PROJECTS)
    benchmarks = present("packages/*/benchmarks/test_*.py")
    session.run(
        "pytest",
        "--benchmark-disable",
        *[b for b in benchmarks if Path(b).name != BASELINES],
        *BY_DAY,
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
        "ctest",
        "--test-dir",
        build,
        "--parallel",
        "2",
        "--output-on-failure",
        "--no-tests=error",
        external=True,
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check format and style."""
    session.install(*group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types strictly, and compare the stubs of the C++ cores with the compiled modules."""
    install(session, [*everything(), *group("typecheck")])
    session.run("mypy", *present("packages/*/src"))
    session.run("mypy", "noxfile.py", *present("integration/[a-z]*/"))
    modules = [f"{name}._core" for name in COMPILED]
    session.run("stubtest", "--allowlist", ".ci/stubtest.txt", *modules)


@nox.session
def constraints(session: nox.Session) -> None:
    """Check what holds across packages: pins, imports, floors, words and changelogs."""
    session.install(*group("constraints"))
    session.run("python", "integration/constraints")


@nox.session(default=False)
def train(session: nox.Session) -> None:
    """Plan and train a GPT on eight virtual devices; arguments after -- go to the command."""
    install(session, everything())
    session.run("python", "-m", "frontends", "train", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Run the benchmarks, write the numbers to docs/results and render docs/benchmarks.md."""
    compared = [p for p in PROJECTS.values() if "baselines" in p.get("dependency-groups", {})]
    baselines = [text for project in compared for text in group("baselines", project)]
    install(session, [*everything(), *group("integration"), *baselines])
    raw = {}
    for package in PROJECTS:
        if files := present(f"packages/{package}/benchmarks/test_*.py"):
            raw[package] = str(session.cache_dir / f"benchmark-{package}.json")
            session.run("pytest", *files, f"--benchmark-json={raw[package]}", *session.posargs)
    for package, path in raw.items():  # last, because a record changes the tree that is measured
        session.run("python", "integration/benchmarks", "keep", package, path)
    session.run("python", "integration/benchmarks", "render")
    session.run("python", "integration/figure7")  # simulated, so it measures nothing


@nox.session(default=False, python=["3.11", "3.12", "3.13", "3.14"])
def versions(session: nox.Session) -> None:
    """Try the frontends with another Python, and, after --, libraries, for docs/versions.md."""
    needed = [*everything(), *group("test", PROJECTS["frontends"]), XDIST]
    others = {Requirement(text).name for text in session.posargs}
    kept = [text for text in needed if Requirement(text).name not in others]
    install(session, [*kept, *session.posargs])
    session.run("python", "integration/versions")


@nox.session(default=False)
def ranking(session: nox.Session) -> None:
    """Measure collectives and strategies on emulated hosts, for docs/costs.md; needs root."""
    install(session, [f"{PREFIX}costmodel[calibrate,plot]", *group("integration")])
    session.run("python", "integration/ranking", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Measure steps on this machine's accelerator, for docs/gpu.md; after --: a preset."""
    install(session, [*everything(), *group("integration"), "jax[cuda13]"])
    session.run("python", "integration/gpu", *session.posargs)


@nox.session(default=False)
def published(session: nox.Session) -> None:
    """Predict steps that others measured, for docs/published.md; after --: parts of their names."""
    install(session, [*everything(), *group("integration")])
    session.run("python", "integration/published", *session.posargs)


@nox.session(default=False)
def crossnet(session: nox.Session) -> None:
    """Move tensors between emulated hosts, for docs/crossmesh_figures.md; needs root."""
    install(session, [f"{PREFIX}crossmesh[plot]", *group("integration")])
    session.run("python", "integration/crossnet", *session.posargs)


@nox.session(default=False)
def sync(session: nox.Session) -> None:
    """Time the weight sync between emulated hosts, for docs/weight_sync.md; needs root."""
    install(session, [f"{PREFIX}crossmesh[torch]", *group("integration")])
    session.run("python", "integration/weight_sync", *session.posargs)


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """Time schedules between emulated hosts, for docs/several_processes.md; needs root."""
    install(session, [*everything(), *group("integration")])
    session.run("python", "integration/hosts", *session.posargs)


@nox.session(default=False)
def unlike(session: nox.Session) -> None:
    """Plan and time steps on unlike hosts, for docs/unlike_hosts.md; needs root, an hour."""
    install(session, [*everything(), *group("integration")])
    session.run("python", "integration/unlike", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the site of the documentation in site/, and look at it in a browser."""
    session.install(*group("docs"))
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    session.run("mkdocs", "build", "--strict", "--config-file", ".ci/mkdocs.yml")
    session.run("python", "integration/site_check", "site")


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Build all distributions into dist/ and check them; or, after --: bump, tag, urls, check."""
    session.install(*group("release"))
    session.run("python", "integration/release", *session.posargs)


@nox.session(default=False)
def examples(session: nox.Session) -> None:
    """Run all programs of examples/; two of them run in `integration`, too."""
    install(session, [*everything(), *group("integration")])
    session.run("pytest", "integration/test_examples.py", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """Run all tests with many examples, for docs/nights.md; an interrupted night is continued.

    Tests that have passed on the present sources are skipped. The others are all tests with 10,000
    examples (slow ones with 2,000), the tests marked nightly, and the tests of processes 50 times
    while another process keeps a processor busy. By day, use: -- --times 2 --only burner.
    """
    groups = [text for project in PROJECTS.values() for text in group("test", project)]
    install(session, [*everything(), *group("integration"), *groups, "py-spy>=0.4"])
    folder = str(session.cache_dir / "nightly")
    session.run("python", "integration/nightly", folder, *session.posargs)
