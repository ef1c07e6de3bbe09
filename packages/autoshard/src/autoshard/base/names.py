"""Names in text notations: unquoted where they can be read back, else quoted as in JSON."""

from __future__ import annotations

import json
import re

BARE = r'(?:(?!->)[^\s,:()"=*])+'
NAME = rf'(?:"(?:[^"\\]|\\.)*"|{BARE})'
"""Matches a quoted or an unquoted name; a regular expression without groups."""

_BARE = re.compile(BARE)


def quote(name: str) -> str:
    """A name as text, quoted only if it has to be.

    Examples:
        >>> quote("params['w'][0]"), quote("x, y")
        ("params['w'][0]", '"x, y"')
    """
    return name if _BARE.fullmatch(name) else json.dumps(name)


def unquote(text: str) -> str:
    """The name that `quote` wrote as `text`."""
    return str(json.loads(text)) if text.startswith('"') else text


def unquote_all(text: str) -> tuple[str, ...]:
    """All names in a text that lists them."""
    return tuple(map(unquote, re.findall(NAME, text)))
