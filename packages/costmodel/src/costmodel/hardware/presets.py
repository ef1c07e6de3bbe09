"""The clusters that come with the package, as JSON texts; each names the source of its figures."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import resources

from costmodel.errors import UnknownNameError

_FOLDER = resources.files("costmodel") / "presets"


def presets() -> tuple[str, ...]:
    """Names of the clusters that come with the package, sorted."""
    files = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def resolve(name: str) -> tuple[str, int | None]:
    """The JSON text of a preset, and the number of hosts after the colon in `name`, if any.

    Raises:
        UnknownNameError: No preset has this name, or the text after the colon is not a whole
            number >= 1.
    """
    preset, colon, count = str(name).partition(":")
    if preset not in presets():
        close = get_close_matches(preset, presets())
        raise UnknownNameError(
            f"no preset is called {preset!r}; "
            + (f"did you mean {' or '.join(close)}; " if close else "")
            + f"known: {', '.join(presets())}; "
            "describe another machine as Cluster(...) or in JSON for Cluster.from_json",
            str(name),
        )
    if colon and not (re.fullmatch("[0-9]{1,18}", count) and int(count) >= 1):
        raise UnknownNameError(
            f"the colon after a preset is followed by a number of hosts, as in '{preset}:2'; "
            f"got {name!r}",
            name,
        )
    text = _FOLDER.joinpath(f"{preset}.json").read_text(encoding="utf-8")
    return text, int(count) if colon else None
