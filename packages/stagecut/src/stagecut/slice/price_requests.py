"""Asks for the costs of stages, each once: in this process, in several, or from a cache folder."""

import hashlib
import json
import warnings
from ast import literal_eval
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagecut.base.types import NUMBERS, Span, StageCost
from stagecut.base.workers import Calls
from stagecut.errors import InvalidInputError

Options = tuple[StageCost, ...]
"""The options of a stage, each with its cost; empty if the stage cannot run."""


@dataclass(frozen=True, slots=True)
class PriceCache:
    """Costs of stages, kept in a folder from one run of a program to the next.

    Nobody can see from outside what the result of a cost function depends on. So the caller says it
    in `about`, and a later search gets the costs back only with the same `about`.
    """

    folder: Path | str
    about: str
    """All that the costs depend on, beside layers, submesh and microbatches: the model and its
    sizes, the cluster, the version of the code that computes prices."""

    @property
    def path(self) -> Path:
        """The file of these costs, named after the content of `about`."""
        return Path(self.folder) / f"{hashlib.sha256(self.about.encode()).hexdigest()}.jsonl"

    def read(self) -> dict[str, Options]:
        """The costs in the file, by the key of the request. Incomplete lines are ignored."""
        known: dict[str, Options] = {}
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                try:
                    key, options = json.loads(line)
                    known[key] = tuple(_read(*row) for row in options)
                except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    continue
        return known

    def add(self, key: str, options: Options) -> None:
        """Append the options of a stage to the file.

        Raises:
            InvalidInputError: `StageCost.option` cannot be read back from its repr. It can if it
                consists of tuples, strings and numbers.
        """
        for each in options:
            if not _is_literal(each.option):
                raise InvalidInputError(
                    "costs that are kept in a folder have options made of tuples, strings, numbers "
                    f"and None; got option={each.option!r}"
                )
        rows = [[getattr(each, name) for name in NUMBERS] + [repr(each.option)] for each in options]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([key, rows])}")  # starts a line, as the last may be cut off


class Asker:
    """Asks a cost function for stages, through `stagecut.base.workers`, and keeps its answers."""

    def __init__(
        self,
        call: Callable[[Calls], Iterator[StageCost | Sequence[StageCost] | None]],
        cache: PriceCache | None,
    ) -> None:
        """Read the cache, and check that it can be written.

        Args:
            call: Calls the cost function, as `workers` yields it.
            cache: Costs of earlier runs, to which new ones are added; None for no cache.

        Raises:
            OSError: The file of the cache cannot be written.
        """
        self._is_full = False
        self._call, self._cache = call, cache
        self._known: dict[str, Options] = {}
        if cache is not None:
            self._known = cache.read()
            cache.path.parent.mkdir(parents=True, exist_ok=True)
            cache.path.open("a").close()  # fails now rather than after the first cost is computed

    def ask(
        self, spans: Sequence[Span], contents: Sequence[Hashable], extra: tuple[int, ...] = ()
    ) -> Iterator[tuple[Options, bool]]:
        """For each stage in order, its options, and whether the function was called for them.

        Args:
            spans: The stages.
            contents: What identifies the layers of each stage in the cache.
            extra: Further arguments of the function, after first layer, last layer and submesh.

        Raises:
            InvalidInputError: An entry of `contents` cannot be a key of the cache, or the function
                does not return costs.
        """
        keys = [""] * len(spans)
        if self._cache is not None:
            keys = [
                _key(content, span, extra) for content, span in zip(contents, spans, strict=True)
            ]
        new = [span for span, key in zip(spans, keys, strict=True) if key not in self._known]
        answers = self._call([(*span, *extra) for span in new])
        for key, span in zip(keys, spans, strict=True):
            if key in self._known:
                yield self._known[key], False
                continue
            options = _options(next(answers), span)
            if self._cache is not None:
                self._known[key] = options
                self._keep(self._cache, key, options)
            yield options, True

    def _keep(self, cache: PriceCache, key: str, options: Options) -> None:
        """Write a cost to the cache; if the disk is full, warn once and go on without the cache."""
        if self._is_full:
            return
        try:
            cache.add(key, options)
        except OSError as error:
            self._is_full = True
            warnings.warn(
                f"costs of this search are no longer kept in {cache.path}: {error}; "
                "make room, or give another folder",
                stacklevel=2,
            )


def _key(content: Hashable, span: Span, extra: tuple[int, ...]) -> str:
    """The key of a cost in the cache."""
    if not _is_literal(content):
        raise InvalidInputError(
            "costs are kept in a folder by the structure of layers, made of tuples, strings, "
            f"numbers and None; got structure={content!r}"
        )
    request = content, tuple(span[2]), getattr(span[2], "hosts", None), extra
    return hashlib.sha256(repr(request).encode()).hexdigest()


def _options(answer: object, span: Span) -> Options:
    """The options of a stage from the answer of a cost function, which may have several forms."""
    if answer is None:
        return ()
    if isinstance(answer, StageCost):
        return (answer,)
    options = tuple(answer) if isinstance(answer, Sequence) else (answer,)
    for each in options:
        if not isinstance(each, StageCost):
            raise InvalidInputError(
                "a cost is a StageCost, a sequence of them, or None; "
                f"got {answer!r} for layers {span[0]}-{span[1]} on {tuple(span[2])}"
            )
    return options


def _read(
    time_s: float, fixed: int, activation: int, once_s: float, temporary: int, option: str
) -> StageCost:
    return StageCost(time_s, fixed, activation, once_s, temporary, literal_eval(option))


def _is_literal(value: object) -> bool:
    """Whether a value can be read back from its repr, which is then the same in every process."""
    try:
        return bool(literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False
