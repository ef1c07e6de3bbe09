"""`Scanner`: reads a text from left to right; its errors say what is wrong and where."""

import re
from typing import NoReturn

from shardspec.base.integers import shown
from shardspec.errors import NotationError

_SPACE = re.compile(r"[ \t\r\n]*+")
_SPACE_OR_COMMENT = re.compile(r"(?:[ \t\r\n]|/\*(?:[^*]|\*(?!/))*+\*/)*+")
_DIGITS = re.compile(r"[0-9]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\['"\\])*+)'|"((?:[^"\\]|\\['"\\])*+)\"""")
_MAX_DIGITS = 18
"""Digits that fit a signed 64-bit integer, which all these notations use for numbers."""
_IN_BRACES = re.compile(r'(?:"(?:[^"\\]|\\.)*+"|[^"{}])*+', re.DOTALL)
_MAX_DEPTH = 100
"""Most nested braces in skipped text; XLA and MLIR nest them three deep."""


class Scanner:
    """A text and the position up to which it has been read.

    White space between tokens is skipped; with `comments`, so is text between `/*` and `*/`.

    Examples:
        >>> s = Scanner("devices=[2, 4]", "a sharding")
        >>> s.name(), s.accept("<="), s.expect("="), s.expect("[")
        ('devices', False, None, None)
        >>> s.integer()
        2
        >>> s.expect("]")
        Traceback (most recent call last):
        shardspec.errors.NotationError: a sharding has ']' here; got ', 4]' at position 10
    """

    __slots__ = ("_space", "position", "text", "what")

    def __init__(self, text: str, what: str, *, comments: bool = False):
        """Starts reading `text`, which is called `what` in messages."""
        if not isinstance(text, str):
            raise NotationError(f"{what} is a text; got {shown(text)}", text="", position=0)
        self.text = text
        self.what = what
        self.position = 0
        self._space = _SPACE_OR_COMMENT if comments else _SPACE

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        """Raises `NotationError`: `reason`, and the text at `position` (default: the current)."""
        at = self.position if position is None else position
        rest = self.text[at : at + 40]
        got = repr(rest) + ("..." if len(self.text) > at + 40 else "") if rest else "the end"
        raise NotationError(f"{reason}; got {got} at position {at}", text=self.text, position=at)

    def peek(self, token: str) -> bool:
        """Whether `token` comes next."""
        self._skip()
        return self.text.startswith(token, self.position)

    def accept(self, token: str) -> bool:
        """Reads `token` if it comes next, and returns whether it did."""
        is_next = self.peek(token)
        if is_next:
            self.position += len(token)
        return is_next

    def expect(self, token: str) -> None:
        """Reads `token`; fails if it does not come next."""
        if not self.accept(token):
            self.fail(f"{self.what} has {token!r} here")

    def integer(self) -> int:
        """Reads an unsigned integer."""
        digits = self._match(_DIGITS, "an integer")
        if len(digits[0]) > _MAX_DIGITS:
            self.fail(f"{self.what} has integers of at most {_MAX_DIGITS} digits", digits.start())
        return int(digits[0])

    def name(self) -> str:
        """Reads a word of letters, digits, `_`, `.` and `-`."""
        return self._match(_NAME, "a name")[0]

    def quoted(self) -> str:
        """Reads a string in single or double quotes; a backslash escapes the next character."""
        quoted = self._match(_QUOTED, "a name in quotes")
        return re.sub(r"\\(.)", r"\1", quoted[1] or quoted[2] or "")

    def skip_braces(self, what: str) -> None:
        """Reads `{...}`, whatever is in the braces; messages call it `what`."""
        start = self.position
        self.expect("{")
        depth = 1
        while depth:
            self._pass(_IN_BRACES)
            if depth < _MAX_DEPTH and self.accept("{"):
                depth += 1
            elif self.accept("}"):
                depth -= 1
            else:
                self.fail(f"{what} ends with its closing brace", start)

    def end(self) -> None:
        """Fails if anything but white space follows."""
        self._skip()
        if self.position < len(self.text):
            self.fail(f"{self.what} ends here")

    def _skip(self) -> None:
        self._pass(self._space)

    def _pass(self, pattern: re.Pattern[str]) -> None:
        """Moves past the text that the pattern matches here, if any."""
        if match := pattern.match(self.text, self.position):
            self.position = match.end()

    def _match(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        self._skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(f"{self.what} has {wanted} here")
        self.position = match.end()
        return match
