"""Changes a file a little: as JSON, as text, or as bytes.

The changes are those that readers forget: entries that are missing, unknown, there twice, or of
another type; numbers that are too large for a float, an int64 or Python's own limit of digits; NaN;
text that no encoding can write; nesting that is deeper than Python's stack.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

JsonPath = tuple[str | int, ...]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    -float("inf"), 2**31, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, 10**400, "", " ", "0", "-1",
    "1e9", "nan", "x", "é", "\0", "\ud800", "\u202e", "x" * 5000, [], [[]], {}, {"": None}, [0],
    [None], ["x"], {"x": 0}, [True, False], [0] * 300,
)  # fmt: skip
"""What may stand where a file has something else."""

MOST_BYTES = 200_000
"""Of a damaged text: a file of gigabytes takes long for a reason that needs no test."""

WORDS = (
    "", "0", "-1", "1", "9" * 30, "9" * 5000, "1e400", "nan", ":", ",", "(", ")", "[", "]", "{",
    "}", "->", "<=", "=", '"', "'", "\\", "\n", "\0", "é", "\ud800", "S0", "R", "P", "0F1", "#",
    "..",
)  # fmt: skip
"""What may stand where a text has another word."""


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three changes; JSON is changed as such, more often than not."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if isinstance(document, dict | list) and rng.random() < 0.8:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            document = _change_json(document, rng)
        return _written(document, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = _change_text(content, rng) if rng.random() < 0.5 else _change_bytes(content, rng)
    return content[:MOST_BYTES]


def _change_json(document: Any, rng: random.Random) -> Any:
    """The document with one change at a random place."""
    paths = list(_paths(document))
    path = rng.choice(paths)
    if not path:
        return _copied(rng.choice(VALUES)) if rng.random() < 0.2 else document
    parent = _at(document, path[:-1])
    key = path[-1]
    old = parent[key]
    match rng.randrange(8):
        case 0 | 1:
            parent[key] = _copied(rng.choice(VALUES))
        case 2:
            del parent[key]
        case 3:
            parent[key] = _nested(old, rng.choice((1, 2, 50, 200)))
        case 4:
            parent[key] = _copied(_at(document, rng.choice(paths)))
        case 5:
            parent[key] = _near(old, rng)
        case 6 if isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), _copied(old))
        case 6:
            parent[rng.choice((f"{key}s", str(key).upper(), "x", ""))] = _copied(old)
        case _ if isinstance(parent, list):
            rng.shuffle(parent)
        case _:
            parent[rng.choice(list(parent))] = _copied(old)
    return document


def _near(old: Any, rng: random.Random) -> Any:
    """A value of the same type that is a little different."""
    match old:
        case bool():
            return not old
        case int() | float():
            return rng.choice((old + 1, old - 1, -old, old * 2, f"{old}", [old], [old, old]))
        case str():
            return _change_text(old.encode(errors="surrogatepass"), rng).decode(errors="replace")
        case list():
            return rng.choice((old[:-1], old + old, old[::-1], dict(enumerate(old))))
        case dict():
            return rng.choice((list(old), list(old.values()), {**old, "x": 1}))
        case _:
            return 0


def _written(document: Any, rng: random.Random) -> bytes:
    """The document as JSON, seldom with an entry that is there twice or is nested too deeply."""
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    chance = rng.random()
    if chance < 0.03:
        entries = re.findall(r'"[^"\\]*": (?:[\w.+-]+|"[^"\\]*"|\[\])', text)
        if entries:
            text = text.replace("{", "{" + rng.choice(entries) + ", ", 1)
    elif chance < 0.05:
        start = text.find(":") + 1
        text = f"{text[:start]} {'[' * 100_000}"
    elif chance < 0.07:
        start = text.find(":") + 1
        text = f"{text[:start]} {'[' * 5_000}{']' * 5_000}, {text[start:]}"
    elif chance < 0.09:
        numbers = list(re.finditer(r"(?<=[ \[])\d+", text))
        if numbers:
            one = rng.choice(numbers)
            text = text[: one.start()] + "9" * 5_000 + text[one.end() :]
    return text.encode(errors="surrogatepass")


def _change_text(content: bytes, rng: random.Random) -> bytes:
    """The content with one word replaced, repeated, left out or exchanged for another one."""
    words = re.findall(rb"[\w.]+|\s+|[^\w\s]", content) or [b""]
    place = rng.randrange(len(words))
    match rng.randrange(5):
        case 0 | 1:
            words[place] = rng.choice(WORDS).encode(errors="surrogatepass")
        case 2:
            words[place] = b""
        case 3:
            words[place] *= rng.choice((2, 3, 300))
        case _:
            other = rng.randrange(len(words))
            words[place], words[other] = words[other], words[place]
    return b"".join(words)


def _change_bytes(content: bytes, rng: random.Random) -> bytes:
    """The content with bytes that are other, missing, new or there twice."""
    first, last = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
    short = min(last, first + rng.randrange(9))
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: content[:first],
        lambda: content[first:],
        lambda: content[:first] + content[short:],
        lambda: content[:first] + rng.randbytes(short - first) + content[short:],
        lambda: content[:first] + rng.randbytes(3) + content[first:],
        lambda: content[:last] + content[first:],
        lambda: content[:first] + bytes(short - first) + content[short:],
        lambda: content[:first]
        + bytes(byte ^ 1 << rng.randrange(8) for byte in content[first:short])
        + content[short:],
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.decode(errors="replace").encode("utf-16"),
        lambda: b"",
    )  # fmt: skip
    return rng.choice(changes)()


def _paths(value: Any, path: JsonPath = ()) -> list[JsonPath]:
    """The places in a document, the document itself first."""
    found, todo = [], [(path, value)]
    for at, one in todo:  # the loop appends to this list
        found.append(at)
        if isinstance(one, dict):
            todo += [((*at, key), inner) for key, inner in one.items()]
        elif isinstance(one, list):
            todo += [((*at, place), inner) for place, inner in enumerate(one)]
    return found


def _at(document: Any, path: JsonPath) -> Any:
    for key in path:
        document = document[key]
    return document


def _copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value
