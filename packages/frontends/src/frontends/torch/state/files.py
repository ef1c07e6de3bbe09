"""Reads weights from safetensors files; a process reads only the parts that it keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from frontends.errors import CheckpointError

_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"
"""File names that Hugging Face uses."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    """Open the files of a model.

    Args:
        path: A safetensors file, the index of several, or a folder with either, as Hugging Face
            writes them.

    Yields:
        By name, an object that reads parts of a tensor: `readers["head.weight"][0:8, :]`.

    Raises:
        CheckpointError: There is no such file, or it holds no tensors, or safetensors is not
            installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CheckpointError(
            "weights in files are read by safetensors, which is not installed: "
            "pip install 'meshwright-frontends[safetensors]'"
        ) from error
    readers: dict[str, Any] = {}
    with ExitStack() as stack:
        for file, wanted in _files(Path(path)).items():
            try:
                reader = stack.enter_context(safe_open(file, framework="pt"))
            except (OSError, ValueError, SafetensorError) as error:
                raise CheckpointError(
                    "weights are read from a safetensors file, the index of several, or a folder "
                    f"with {_INDEX} or {_ONE}; {file}: {error}"
                ) from error
            stored = set(reader.keys())
            if wanted is not None and not wanted <= stored:
                raise CheckpointError(
                    f"a file holds what the index says; {file} lacks {sorted(wanted - stored)[:3]}"
                )
            readers |= {name: reader.get_slice(name) for name in wanted or stored}
        yield readers


def _files(path: Path) -> Mapping[Path, set[str] | None]:
    """Return the files of a model, each with the names to read from it; None for all."""
    if path.is_dir():
        path = next((path / name for name in (_INDEX, _ONE) if (path / name).exists()), path / _ONE)
    if path.suffix != ".json":
        return {path: None}
    try:
        file_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(file_of, dict) or not all(isinstance(f, str) for f in file_of.values()):
            raise TypeError(f"got {file_of!r:.60}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            "the index of safetensors files is JSON with a weight_map from names to files; "
            f"{path}: {type(error).__name__}: {error}"
        ) from error
    files: dict[Path, set[str]] = {}
    for name, file in file_of.items():
        files.setdefault(path.parent / file, set()).add(name)
    return files
