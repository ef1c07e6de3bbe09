"""Real text to train on, as bytes: a file, a folder, or the source of the standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from shardspec.amounts import bytes_text

from frontends.errors import DataError

LIMIT_BYTES = 64 << 20
"""The most bytes that are read; a run of a thousand steps sees a small part of them."""

_HELD_OUT = 10
"""One of this many parts of a text is for validation [chosen]."""

_NOT_LIBRARY = ("site-packages", "dist-packages", "test", "tests", "idle_test")

Array = np.ndarray[Any, Any]
Batch = tuple[Array, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A training text as bytes, and where it is from."""

    data: Array
    """Shape (n_bytes,), uint8."""

    source: str
    n_files: int
    is_cut: bool
    """Whether there was more than `LIMIT_BYTES`."""

    def __str__(self) -> str:
        files = "1 file" if self.n_files == 1 else f"{self.n_files:,} files"
        cut = f", cut after {bytes_text(LIMIT_BYTES)}" if self.is_cut else ""
        return f"{bytes_text(self.data.size)} of {files} of {self.source}{cut}"


def split(text: Text) -> tuple[Text, Text]:
    """The text without its last tenth, to train on, and that tenth, to validate on."""
    at = text.data.size - text.data.size // _HELD_OUT
    return replace(text, data=text.data[:at]), replace(text, data=text.data[at:])


def standard_library() -> Text:
    """The sources of the running Python's standard library without its tests.

    Raises:
        DataError: This Python has no sources, or they cannot be read.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not any(part in _NOT_LIBRARY for part in path.relative_to(root).parts)
    ]
    if not files:
        raise DataError(
            "the default training text is the source of Python's standard library; "
            f"there is none in {root}: give a text with --data"
        )
    return _read(files, f"Python's standard library ({root})")


def read_text(path: str | Path) -> Text:
    """The bytes of a file, or of all files in a folder in the order of their paths.

    Hidden files and folders are skipped.

    Raises:
        DataError: The path does not exist, has no files, or cannot be read.
    """
    root = Path(path)
    if not root.exists():
        raise DataError(f"a training text is a file or a folder; there is no {path}")
    if not root.is_dir():
        return _read([root], str(path))
    files = [
        file
        for file in sorted(root.rglob("*"))
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(root).parts)
    ]
    if not files:
        raise DataError(f"a folder of training text has files in it; {path} has none")
    return _read(files, str(path))


def batches(text: Text, batch: int, sequence: int, seed: int) -> Iterator[Batch]:
    """Infinitely many random batches of the text, the same ones for the same arguments.

    Args:
        text: The text.
        batch: Number of sequences in a batch.
        sequence: Number of tokens in a sequence.
        seed: Seed of numpy's generator.

    Returns:
        Pairs of tokens and targets, each int32 of shape (batch, sequence). The target of a token is
        the next token.

    Raises:
        DataError: The text is shorter than one sequence and the byte after it.
    """
    if text.data.size < sequence + 1:
        raise DataError(
            f"a training text holds at least one sequence and the byte after it, {sequence + 1} "
            f"bytes; {text.source} has {text.data.size}: give more with --data or a shorter "
            "--sequence"
        )
    pieces = np.lib.stride_tricks.sliding_window_view(text.data, sequence + 1)
    generator = np.random.default_rng(seed)

    def draw() -> Iterator[Batch]:
        while True:
            drawn = pieces[generator.integers(len(pieces), size=batch)].astype(np.int32)
            yield drawn[:, :-1], drawn[:, 1:]

    return draw()


def _read(files: list[Path], source: str) -> Text:
    left, parts = LIMIT_BYTES + 1, []
    for path in files:
        try:
            with path.open("rb") as file:
                parts.append(file.read(left))
        except OSError as error:
            raise DataError(
                f"every file of a training text can be read; {path}: {error.strerror}"
            ) from error
        left -= len(parts[-1])
        if left == 0:
            break
    data = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return Text(data[:LIMIT_BYTES], source, len(parts), is_cut=left == 0)
