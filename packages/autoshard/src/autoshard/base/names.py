"""Names in text: bare where that can be read back, quoted as in JSON where it cannot."""

from __future__ import annotations

import json
import re

BARE = r'(?:(?!->)[^\s,:()"=*])+'
NAME = rf'(?:"(?:[^"\\]|\\.)*"|{BARE})'
"""A regular expression without groups."""

_BARE = re.compile(BARE)


def quote(name: str) -> str:
    """A name as text.

    Examples:
        >>> quote("params['w'][0]"), quote("x, y")
        ("params['w'][0]", '"x, y"')
    """
    return name if _BARE.fullmatch(name) else json.dumps(name)


def unquote(text: str) -> str:
    """The name that `quote` wrote."""
    return str(json.loads(text)) if text.startswith('"') else text


def unquote_all(text: str) -> tuple[str, ...]:
    """The names in a list of them."""
    return tuple(map(unquote, re.findall(NAME, text)))
