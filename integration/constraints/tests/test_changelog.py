import subprocess

import pytest
from constraints.changelog import check_changelog
from constraints.projects import load_projects

SOURCE = "packages/shardspec/src/shardspec/a.py"
ENTRY = "packages/shardspec/CHANGELOG.md"


def git(root, *args):
    user = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", root, *user, *args], check=True, capture_output=True, timeout=300)


def violations(root):
    return list(check_changelog(load_projects(root), root))


@pytest.fixture
def commit(tmp_path):
    def commit_all(message="Change"):
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", message)

    git(tmp_path, "init", "--quiet")
    return commit_all


@pytest.fixture
def history(commit, package, write):
    """A repository with two commits of a package, without violations."""
    package("shardspec")
    write(ENTRY, "Unreleased")
    commit()
    commit()
    return commit


@pytest.mark.parametrize("committed", [True, False])
def test_a_changed_source_without_an_entry_is_found(tmp_path, history, write, committed):
    write(SOURCE, "x = 1")
    git(tmp_path, "add", SOURCE)
    if committed:
        history()
    (violation,) = violations(tmp_path)
    assert violation.startswith(f"{ENTRY}: a changed src/ has an entry under Unreleased")
    assert SOURCE in violation


def test_a_changed_source_with_an_entry_is_no_violation(tmp_path, history, write):
    write(SOURCE, "x = 1")
    write(ENTRY, "Unreleased: x is there")
    history()
    assert violations(tmp_path) == []


def test_an_entry_of_another_package_does_not_count(tmp_path, history, package, write):
    write(SOURCE, "x = 1")
    package("costmodel")
    write("packages/costmodel/CHANGELOG.md", "Unreleased")
    history()
    assert len(violations(tmp_path)) == 1


def test_tests_and_docs_need_no_entry(tmp_path, history, write):
    write("packages/shardspec/tests/test_a.py", "x = 1")
    write("docs/index.md")
    history()
    assert violations(tmp_path) == []


def test_a_commit_can_say_that_users_notice_nothing(tmp_path, history, write):
    write(SOURCE, "x = 1")
    history("Rename a variable\n\nChangelog: none")
    assert violations(tmp_path) == []
    write(SOURCE, "x = 2")
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize("state", ["no repository", "no commit", "first commit", "shallow clone"])
def test_without_a_previous_commit_nothing_is_found(tmp_path, package, write, request, state):
    root = tmp_path
    if state != "no repository":
        commit = request.getfixturevalue("commit")
    package("shardspec")
    if state == "first commit":
        commit()
    if state == "shallow clone":
        commit()
        write(SOURCE, "x = 1")
        commit()
        assert len(violations(tmp_path)) == 1
        root = tmp_path / "clone"
        git(tmp_path, "clone", "--quiet", "--depth=1", tmp_path.as_uri(), str(root))
    assert violations(root) == []
