"""Tables of sharding rules: one entry for each operator, of a frontend or registered by a user.

An entry says which dims of an operator's operands and results belong together, how many
floating-point operations it takes, and which of its attributes depend on shapes.
`frontends.jax.register_rule` and `frontends.torch.register_rule` add an entry to the table of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import autoshard
from autoshard import Rule, labelled

from frontends.errors import RegistrationError

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Linear = tuple[tuple[int, ...], ...]
Reduction = Literal["sum", "max", "min"]
_WORD = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class CallShapes(Protocol):
    """The shapes of an operator's call, which the functions of an entry get."""

    @property
    def operands(self) -> Shapes:
        """Shapes of the operands."""

    @property
    def results(self) -> Shapes:
        """Shapes of the results."""


DescribedT = TypeVar("DescribedT", bound=CallShapes)
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Formula:
    """A rule in the notation of einsum; with an ellipsis, for operands of any rank.

    Examples:
        >>> Formula("...k,kn->...n")._at(((2, 3, 4), (4, 5)), ((2, 3, 5),))
        'bck,kn->bcn'
    """

    text: str
    whole: str = ""
    """Letters of dims that must not be split."""

    reduction: Reduction = "sum"
    """How a dim that no result has is reduced."""

    linear: Linear = ()
    """Sets of operands in which the operator is jointly linear, so that it maps partial sums of
    these operands to partial sums of its results."""

    def __post_init__(self) -> None:
        left, arrow, right = self.text.partition("->")
        words = [word.strip() for side in (left, right) for word in side.split(",")]
        if not arrow or not all(map(_WORD.fullmatch, words)):
            raise RegistrationError(
                "a formula has a letter for each dim of the operands, an arrow and those of the "
                f"results, as in '...k,kn->...n'; got {self.text!r}"
            )
        if unknown := set(self.whole) - set(self.text):
            raise RegistrationError(
                f"whole dims are letters of the formula {self.text!r}; got {sorted(unknown)}"
            )
        if self.reduction not in get_args(Reduction):
            raise RegistrationError(
                f"parts are reduced by one of {', '.join(get_args(Reduction))}; got "
                f"reduction={self.reduction!r}"
            )
        n_operands = left.count(",") + 1
        if any(operand not in range(n_operands) for group in self.linear for operand in group):
            raise RegistrationError(
                f"an operator is linear in sets of operands, 0 to {n_operands - 1} of "
                f"{self.text!r}; got linear={self.linear!r}"
            )

    def __call__(self, call: CallShapes) -> Rule:
        """The rule of a call."""
        return labelled(
            self._at(call.operands, call.results),
            call.operands,
            call.results,
            whole=self.whole,
            reduction=self.reduction,
            linear=self.linear,
        )

    def _at(self, operands: Shapes, results: Shapes) -> str:
        """The formula with letters instead of ellipses, which are aligned at their last dim."""
        free = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        free = [c for c in free if c not in self.text]

        def side(words: str, shapes: Shapes) -> str:
            expanded = []
            for word, shape in zip(words.split(","), shapes, strict=False):
                n = max(0, len(shape) - len(word.strip().replace("...", "")))
                expanded.append(word.strip().replace("...", "".join(free[:most][most - n :])))
            return ",".join([*expanded, *words.split(",")[len(expanded) :]])

        left, _, right = self.text.partition("->")
        most = max(map(len, operands + results), default=0)
        return f"{side(left, operands)}->{side(right, results)}"


@dataclass(frozen=True, slots=True)
class OperatorEntry(Generic[DescribedT]):
    """How an operator can be sharded, and what it costs."""

    rule: Callable[[DescribedT], Rule]
    """The rule of a call."""

    flops: Callable[[DescribedT], float] | None = None
    """The floating-point operations of a call; None for one for each element that it touches."""

    part: Callable[[DescribedT], Mapping[str, Any]] | None = None
    """The attributes that change if operands and results are shards, as they hold shapes."""

    sends: bool = False
    """Whether a frontend sends what rings and halves of the rule ask for while a call runs."""

    @classmethod
    def of(
        cls,
        rule: str | Callable[[DescribedT], Rule],
        whole: str = "",
        reduction: Reduction = "sum",
        linear: Linear = (),
        flops: Callable[[DescribedT], float] | None = None,
        part: Callable[[DescribedT], Mapping[str, Any]] | None = None,
    ) -> OperatorEntry[DescribedT]:
        """The entry of a rule that is a formula or a function.

        `whole`, `reduction` and `linear` complete a formula; a function returns all of the rule.

        Raises:
            RegistrationError: The rule is neither, or is a function and comes with `whole`,
                `reduction` or `linear`.
        """
        if isinstance(rule, str):
            return cls(Formula(rule, whole, reduction, linear), flops, part)
        if not callable(rule) or (whole, reduction, linear) != ("", "sum", ()):
            raise RegistrationError(
                "a rule is a formula, with whole=, reduction= and linear=, or a function that "
                f"makes an autoshard.Rule of a call; got {rule!r} with whole={whole!r}, "
                f"reduction={reduction!r} and linear={linear!r}"
            )
        return cls(rule, flops, part)

    def rule_of(self, name: str, call: DescribedT) -> Rule:
        """The rule of a call, checked.

        Raises:
            RuleError: The entry's function returned something else, or a rule for other shapes.
        """
        rule = self.rule(call)
        if not isinstance(rule, Rule):
            raise autoshard.RuleError(f"a rule is an autoshard.Rule; that of {name} is {rule!r}")
        if (rule.operand_shapes, rule.result_shapes) != (call.operands, call.results):
            raise autoshard.RuleError(
                f"a rule has the shapes of its call, {call.operands} to {call.results}; that of "
                f"{name} is '{rule}'"
            )
        if rule.sends and not self.sends:
            raise autoshard.RuleError(
                "nothing is sent while a registered operator runs, so its rule has no rings and no "
                f"halves; that of {name} is '{rule}'"
            )
        return rule

    def flops_of(self, call: DescribedT) -> float:
        """The floating-point operations of a call."""
        return touched(call) if self.flops is None else float(self.flops(call))


def touched(call: CallShapes) -> float:
    """The default for the floating-point operations of a call: one for each element it touches."""
    return autoshard.flops_of("touched", call.operands, call.results)


class RuleTable(Generic[KeyT, DescribedT]):
    """The entries of a frontend, each under the framework's name for the operator.

    Installed distributions can add rules, too: each entry point of the group is a function without
    arguments that registers them. They are called when the first rule is looked up.

    Args:
        entries: The entries to begin with.
        group: The group of these entry points.
    """

    def __init__(
        self, entries: Iterable[tuple[KeyT, OperatorEntry[DescribedT]]], group: str
    ) -> None:
        self._entries: dict[KeyT, OperatorEntry[DescribedT]] = {}
        self._group = group
        self._waiting: list[EntryPoint] | None = None
        for key, entry in entries:
            self.add(key, entry)

    def get(self, key: KeyT) -> OperatorEntry[DescribedT] | None:
        """The entry of an operator; None if it has none.

        Raises:
            RegistrationError: An installed distribution fails to register its rules.
        """
        if self._waiting is None:
            points = entry_points(group=self._group)
            self._waiting = sorted(points, key=lambda point: (point.name, point.value))
        while self._waiting:
            point = self._waiting.pop(0)  # before it is called, as it may ask for rules itself
            try:
                self._register(point)
            except RegistrationError:
                self._waiting.insert(0, point)
                raise
        return self._entries.get(key)

    def _register(self, point: EntryPoint) -> None:
        """Call an entry point, which registers the rules of a distribution."""
        try:
            point.load()()
        except Exception as error:  # importing a distribution may raise anything
            whose = "a distribution" if point.dist is None else point.dist.name
            raise RegistrationError(
                f"an entry point of {point.group} is a function that registers rules; {point.name} "
                f"of {whose}, which is {point.value}, fails: {type(error).__name__}: {error}: mend "
                "or uninstall the distribution"
            ) from error

    def add(self, key: KeyT, entry: OperatorEntry[DescribedT]) -> None:
        """Add the entry of an operator.

        Raises:
            RegistrationError: The operator has another entry already.
        """
        if self._entries.setdefault(key, entry) != entry:
            raise RegistrationError(
                f"an operator has one rule, for all plans of a process; {key} has another one "
                "already: register it once, or call the operator something else"
            )
