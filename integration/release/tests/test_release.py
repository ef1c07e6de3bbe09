import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from constraints.pins import check_pins
from constraints.projects import load_projects
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from release.__main__ import main
from release.changelog import MOST_WORDS, UNRELEASED
from release.errors import ReleaseError
from release.versions import package_names, version_of

ROOT = Path(__file__).resolve().parents[3]
DAY = ["--day", "2026-01-31"]
URL = "https://example.org/owner/meshwright"


def project(root: Path, package: str) -> dict:
    return tomllib.loads((root / "packages" / package / "pyproject.toml").read_text())["project"]


def changelog(root: Path, package: str) -> Path:
    return root / "packages" / package / "CHANGELOG.md"


def test_a_bump_writes_the_version_and_moves_the_pins(root: Path) -> None:
    main(["bump", "shardspec", "0.2.0", *DAY], root)
    assert version_of(root, "shardspec") == "0.2.0"
    assert version_of(root, "costmodel") == "0.1.0"
    assert project(root, "costmodel")["dependencies"] == [
        "numpy>=1.26",
        "meshwright-shardspec[plot]~=0.2.0",
    ]
    assert list(check_pins(load_projects(root))) == []


def test_a_pin_that_admits_the_version_stays(root: Path) -> None:
    before = project(root, "costmodel")
    main(["bump", "shardspec", "0.1.1", *DAY], root)
    assert project(root, "costmodel") == before


def test_who_needs_a_release_too_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bump", "shardspec", "0.2.0", *DAY], root)
    assert "costmodel: needs a later version of another package now" in capsys.readouterr().out


def test_several_packages_are_released_together(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bump", "shardspec", "0.2.0", "costmodel", "1.0.0rc1", *DAY], root)
    assert [version_of(root, name) for name in package_names(root)] == ["1.0.0rc1", "0.2.0"]
    assert "release it, too" not in capsys.readouterr().out


def test_what_is_unreleased_becomes_the_version_with_its_date(root: Path) -> None:
    main(["bump", "shardspec", "0.2.0", *DAY], root)
    assert changelog(root, "shardspec").read_text() == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-01-31)\n\nNew in shardspec.\n"
    )


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["shardspec"], "every package is followed by its version"),
        (["nothing", "0.2.0"], "a release names a folder of packages"),
        (["shardspec", "new"], "a version has three numbers"),
        (["shardspec", "0.2"], "a version has three numbers"),
        (["shardspec", "v0.2.0"], "a version has three numbers"),
        (["shardspec", "0.2.0+mine"], "a version has three numbers"),
        (["shardspec", "0.1.0"], "a new version is later than the present one"),
        (["shardspec", "0.2.0", "costmodel", "0.0.9"], "a new version is later"),
    ],
)
def test_a_refused_bump_changes_nothing(
    root: Path, git: Callable[..., str], words: list[str], rule: str
) -> None:
    with pytest.raises(ReleaseError, match=rule):
        main(["bump", *words, *DAY], root)
    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("# Changelog\n", "a changelog has a section"),
        ("## Unreleased\n\n## 0.1.0 (2026-01-01)\n\nOld.\n", "nothing is under '## Unreleased'"),
        ("## Unreleased\n\n" + "word " * (MOST_WORDS + 1), f"at most {MOST_WORDS} words"),
    ],
)
def test_a_release_says_briefly_what_is_new(
    root: Path, commit: Callable[[], None], text: str, rule: str
) -> None:
    changelog(root, "shardspec").write_text(text)
    commit()
    with pytest.raises(ReleaseError, match=rule):
        main(["bump", "shardspec", "0.2.0", *DAY], root)


@pytest.mark.parametrize("command", [[], ["bump", "shardspec", "0.2.0"], ["tag"], ["urls", URL]])
@pytest.mark.parametrize("file", ["packages/shardspec/CHANGELOG.md", "new.txt"])
def test_a_tree_with_changes_is_refused(root: Path, command: list[str], file: str) -> None:
    (root / file).write_text("changed")
    with pytest.raises(ReleaseError, match=f"committed files only; 1 are changed or new .*{file}"):
        main(command, root)


def test_without_a_repository_git_says_why(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"git .* says: fatal: not a git repository"):
        main(["tag"], tmp_path)


def test_tags_are_of_released_versions_and_made_once(
    root: Path, git: Callable[..., str], commit: Callable[[], None]
) -> None:
    main(["bump", "shardspec", "0.2.0", "costmodel", "0.3.0", *DAY], root)
    commit()
    main(["tag"], root)
    assert git("tag").split() == ["costmodel-v0.3.0", "shardspec-v0.2.0"]
    made = git("show-ref", "--tags")
    commit()
    main(["tag"], root)
    assert git("show-ref", "--tags") == made


def test_a_version_without_a_changelog_is_not_tagged(root: Path, git: Callable[..., str]) -> None:
    with pytest.raises(ReleaseError, match="a tagged version is in the changelog"):
        main(["tag"], root)
    assert git("tag") == ""


def test_one_command_writes_all_addresses_again_and_again(
    root: Path, commit: Callable[[], None]
) -> None:
    (root / "CITATION.cff").write_text("cff-version: 1.2.0\n")
    commit()
    main(["urls", "https://example.org/other/place"], root)
    commit()
    main(["urls", URL], root)
    assert project(root, "shardspec")["urls"] == {
        "Source": f"{URL}/tree/HEAD/packages/shardspec",
        "Changelog": f"{URL}/blob/HEAD/packages/shardspec/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    }
    assert (root / "CITATION.cff").read_text() == (f"cff-version: 1.2.0\nrepository-code: {URL}\n")


@pytest.mark.parametrize("url", ["", "example.org/a", "http://example.org/a", f'{URL}"\nx = "'])
def test_an_address_is_that_of_a_repository(root: Path, url: str) -> None:
    with pytest.raises(ReleaseError, match="the address of a repository is https://"):
        main(["urls", url], root)


@given(st.tuples(*[st.integers(0, 20)] * 3), st.tuples(*[st.integers(0, 20)] * 3))
def test_only_later_versions_follow(
    tmp_path_factory: pytest.TempPathFactory, now: tuple[int, ...], then: tuple[int, ...]
) -> None:
    from release.versions import checked

    root = tmp_path_factory.mktemp("root")
    folder = root / "packages" / "a"
    folder.mkdir(parents=True)
    old, new = (".".join(map(str, numbers)) for numbers in (now, then))
    (folder / "pyproject.toml").write_text(f'[project]\nname = "a"\nversion = "{old}"\n')
    if then > now:
        assert checked(root, "a", new) == Version(new)
    else:
        with pytest.raises(ReleaseError, match="later than the present one"):
            checked(root, "a", new)


@pytest.mark.parametrize("name", package_names(ROOT))
def test_the_packages_have_what_a_release_needs(name: str) -> None:
    table = project(ROOT, name)
    for key in ("description", "readme", "license", "authors", "keywords", "classifiers"):
        assert table[key], key
    assert table["license-files"] == ["LICENSE"]
    folder = ROOT / "packages" / name
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert UNRELEASED in changelog(ROOT, name).read_text()


@pytest.mark.parametrize("name", package_names(ROOT))
def test_no_release_says_more_than_anybody_reads(name: str) -> None:
    sections = re.split(r"^## ", changelog(ROOT, name).read_text(), flags=re.MULTILINE)
    for section in sections[1:]:
        assert len(section.split()) <= MOST_WORDS, section.partition("\n")[0]
