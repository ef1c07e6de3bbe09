"""Weights in safetensors files, of which a process reads only the parts that it keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from frontends.errors import CheckpointError

_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"
"""What Hugging Face calls them."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    """Open the files of a model.

    Args:
        path: A file; the index of several, or a folder that has either, as Hugging Face writes
            them.

    Yields:
        By name, what reads parts of a tensor: `found["head.weight"][0:8, :]`.

    Raises:
        CheckpointError: There is no such file, or it holds no tensors, or safetensors is not
            installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CheckpointError(
            "weights are read from files by safetensors, which is not installed: "
            "pip install 'meshwright-frontends[safetensors]'"
        ) from error
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        for file, wanted in _files(Path(path)).items():
            try:
                reader = stack.enter_context(safe_open(file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    "weights are read from a safetensors file, the index of several, or a folder "
                    f"with {_INDEX} or {_ONE}; {file}: {error}"
                ) from error
            there = set(reader.keys())
            if wanted is not None and not wanted <= there:
                raise CheckpointError(
                    f"a file holds what the index says; {file} lacks {sorted(wanted - there)[:3]}"
                )
            found |= {name: reader.get_slice(name) for name in wanted or there}
        yield found


def _files(path: Path) -> Mapping[Path, set[str] | None]:
    """The files of a model, and the names that are wanted of each if not all."""
    if path.is_dir():
        path = next((path / name for name in (_INDEX, _ONE) if (path / name).exists()), path / _ONE)
    if path.suffix != ".json":
        return {path: None}
    try:
        file_of = json.loads(path.read_text())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "the index of safetensors files is JSON with a weight_map from names to files; "
            f"{path}: {type(error).__name__}: {error}"
        ) from error
    files: dict[Path, set[str]] = {}
    for name, file in file_of.items():
        files.setdefault(path.parent / file, set()).add(name)
    return files
