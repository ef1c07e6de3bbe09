"""Asks for the costs of stages: each once, in this process or in several, or from a folder."""

import hashlib
import json
import warnings
from ast import literal_eval
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagecut.base.types import Span, StageCost
from stagecut.base.workers import Calls
from stagecut.errors import InvalidInputError

Options = tuple[StageCost, ...]
"""The ways to run a stage; none if it cannot run."""


@dataclass(frozen=True, slots=True)
class PriceCache:
    """Costs kept in a folder, from one run of a program to the next.

    What a cost function does cannot be seen from outside. So whoever keeps its results says what
    they depend on, and gets them back only for the very same.
    """

    folder: Path | str
    about: str
    """All that costs depend on beside layers, submesh and microbatches: the model and its sizes,
    the cluster, the version of what prices."""

    @property
    def path(self) -> Path:
        """The file of these costs, named after the content of `about`."""
        return Path(self.folder) / f"{hashlib.sha256(self.about.encode()).hexdigest()}.jsonl"

    def read(self) -> dict[str, Options]:
        """The costs that are there, by the content of what was asked. Half a line is left out."""
        known: dict[str, Options] = {}
        if self.path.exists():
            text = self.path.read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                try:
                    key, options = json.loads(line)
                    known[key] = tuple(_read(*row) for row in options)
                except (ValueError, TypeError, SyntaxError):
                    continue
        return known

    def add(self, key: str, options: Options) -> None:
        """Append a cost.

        Raises:
            InvalidInputError: An option is not written as it is printed, as tuples, strings and
                numbers are.
        """
        for each in options:
            if not _is_literal(each.option):
                raise InvalidInputError(
                    "costs that are kept in a folder have options made of tuples, strings, numbers "
                    f"and None; got option={each.option!r}"
                )
        rows = [
            [getattr(each, name) for name in _NUMBERS] + [repr(each.option)] for each in options
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([key, rows])}")  # begins a line, should the last have no end


_NUMBERS = "time_s", "fixed_bytes", "activation_bytes", "once_s", "temporary_bytes"
"""Fields of a `StageCost` in the order in which they are kept."""


class Asker:
    """Asks a cost function, by way of `stagecut.base.workers`."""

    def __init__(
        self,
        call: Callable[[Calls], Iterator[StageCost | Sequence[StageCost] | None]],
        cache: PriceCache | None,
    ) -> None:
        """Prepare to ask.

        Args:
            call: Calls the function.
            cache: Where to look first, and to keep what is new.

        Raises:
            OSError: The cache's file cannot be written.
        """
        self._is_full = False
        self._call, self._cache = call, cache
        self._known: dict[str, Options] = {}
        if cache is not None:
            self._known = cache.read()
            cache.path.parent.mkdir(parents=True, exist_ok=True)
            cache.path.open("a").close()  # fails now rather than after the first cost was found

    def ask(
        self, spans: Sequence[Span], contents: Sequence[Hashable], told: tuple[int, ...] = ()
    ) -> Iterator[tuple[Options, bool]]:
        """The options of stages in their order, and whether the function was asked for them.

        Args:
            spans: The stages.
            contents: What the cache knows their layers by.
            told: What the function is told after first layer, last layer and submesh.

        Raises:
            InvalidInputError: What the cache should know a stage by cannot be written there.
        """
        keys = [""] * len(spans)
        if self._cache is not None:
            keys = [
                _key(content, span, told) for content, span in zip(contents, spans, strict=True)
            ]
        new = [span for span, key in zip(spans, keys, strict=True) if key not in self._known]
        answers = self._call([(*span, *told) for span in new])
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
        """Write a cost down; if the disk is full, the search goes on."""
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


def _key(content: Hashable, span: Span, told: tuple[int, ...]) -> str:
    """What the cache knows a cost by."""
    if not _is_literal(content):
        raise InvalidInputError(
            "costs are kept in a folder by the structure of layers, made of tuples, strings, "
            f"numbers and None; got structure={content!r}"
        )
    asked = content, tuple(span[2]), getattr(span[2], "hosts", None), told
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def _options(answer: object, span: Span) -> Options:
    """The ways to run a stage, whatever form the answer has."""
    if answer is None:
        return ()
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
    """Whether a value is the same in every process, and can be read as it is printed."""
    try:
        return bool(literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False
