"""Make a release; without a command, builds everything into dist/ and checks it."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import release` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from release.build import build, check
from release.changelog import cut, release_notes
from release.errors import ReleaseError
from release.tree import require_clean, tag
from release.urls import set_urls
from release.versions import checked, set_version, version_of

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str], root: Path = ROOT) -> None:
    """Run the command that the arguments name."""
    options = _parser().parse_args(arguments)
    if options.command == "check":
        check(root, options.folder)
        return
    require_clean(root)
    match options.command:
        case None:
            build(root, root / "dist")
            check(root, root / "dist")
        case "bump":
            bump(root, options.versions, options.day)
        case "tag":
            for name in tag(root):
                print(f"tagged {name}")
        case "urls":
            for path in set_urls(root, options.url):
                print(f"wrote {path}")


def bump(root: Path, words: Sequence[str], day: str) -> None:
    """Release packages: versions, pins of others, changelogs; nothing changes if one is refused.

    Args:
        words: Package, version, package, version, and so on.
        day: The date of the release.
    """
    if len(words) % 2:
        raise ReleaseError(
            f"every package is followed by its version; got {' '.join(words)!r}; write for "
            "instance: bump shardspec 0.2.0 costmodel 0.3.0"
        )
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    for name, version in wanted.items():
        checked(root, name, version)
        release_notes(root, name)
    followers = set()
    for name, version in wanted.items():
        print(f"{name}: {version_of(root, name)} becomes {version}")
        followers.update(set_version(root, name, version))
        cut(root, name, version, day)
    for name in sorted(followers - wanted.keys()):
        print(f"{name}: needs a later version of another package now, so release it, too")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nox -s release --", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    command = commands.add_parser("bump", help="write new versions, pins and changelogs")
    command.add_argument(
        "versions", nargs="+", metavar="WORD", help="package, version, package, version, ..."
    )
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    command.add_argument("--day", default=today, help="date in the changelogs; today's by default")
    commands.add_parser("tag", help="tag the present commit, for each version without a tag")
    command = commands.add_parser("urls", help="write where the repository is at home")
    command.add_argument("url")
    command = commands.add_parser("check", help="check distributions that are built already")
    command.add_argument("folder", type=Path)
    return parser


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ReleaseError as error:
        sys.exit(f"error: {error}")
