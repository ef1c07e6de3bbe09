"""Constructs the plan that moves the fewest bytes from one layout to another.

It works in common units (`refine`): atoms move from their digits in the source to their digits in
the destination. If an atom moves to a digit that another one leaves, the two belong to one *chain*
(or cycle). Chains do not touch each other. The steps are:

1. *slice*: A free atom moves to its digit; if that is taken, to the digit where its chain ends. If
   the chain ends with an atom that stands on a digit only until it is filled (step 5), and anything
   is sent, the free atom moves to a new digit of its own.
2. *reduce*: Atoms with partial results that will stand on a digit move there in the same way, by a
   reduce-scatter. Those that will be free are combined by an all-reduce. Of several kinds of
   partial results, the last comes first.
3. *exchange*: Every chain moves on by one atom, all chains in one collective. If the digits in use
   stay the same, it is a permutation of the devices; if each atom moves to a digit that was not in
   use, it is an all-to-all; otherwise it is both in one. An atom that will be free leaves its digit
   to the next atom of its chain, and takes the digit that the chain leaves behind.
4. *gather*: Atoms that will be free are gathered at the end, all at once.
5. *fill*: Atoms that are to hold partial results leave their digits, and devices fill up what they
   do not have with neutral elements. Until then these atoms are kept on digits, as shards.

So no device ever holds more than the larger of its two shards. Without partial results the bytes
equal the bound of `lower_bound`: slices and fills cost nothing, the exchange brings what a device
lacks of a shard as small as possible, and the gather brings the rest.

If partial results are combined over `u` devices, all replicas would reduce, and exchange, the same
data. Therefore free atoms then *spread*: they, and those that an all-reduce would make free, stand
on digits of their own from step 1 or 2 until they are gathered. If `r` devices want an element, and
a fraction `e` of the elements has to be exchanged, that takes `(u - 1) + e + (r - 1)` messages per
element, which is the bound again. Only an axis with partial results that takes the digit of an axis
that becomes free costs more, because the bound would let one device do all the work. If nothing has
to be exchanged, spreading saves `(u - 2)(f - 1)` messages with `f` replicas; if that is 0, atoms do
not spread. (A single collective instead, with at most half again the bytes, would make some detours
by way of another layout cheaper than the plan.)
"""

import math
from dataclasses import dataclass
from typing import Literal

from shardspec.base.partial import Reduction
from shardspec.refine.refine import FREE, PARTIAL, Kinds, Places, Refined

StepKind = Literal[
    "slice",
    "fill",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "reduce_scatter",
    "all_reduce",
    "exchange",
]
"""What one step of a resharding does: a local slice or fill, or a collective."""


@dataclass(frozen=True, slots=True)
class Move:
    """One collective in common units."""

    kind: StepKind
    reduction: Reduction | None
    places: Places
    """Places of the atoms afterwards."""
    kinds: Kinds
    """Partial results of the atoms afterwards."""


class _Construction:
    def __init__(self, units: Refined, one_exchange: bool) -> None:
        self.units = units
        self.one_exchange = one_exchange
        self.place = list(units.src)
        self.kinds = list(units.src_kinds)
        self.moves: list[Move] = []
        self.new_partial = [
            i
            for i, (old, new) in enumerate(zip(units.src_kinds, units.dst_kinds, strict=True))
            if new and new != old
        ]
        """Atoms that get partial results in the destination."""
        self.goal = [FREE if i in self.new_partial else place for i, place in enumerate(units.dst)]
        """Places of the atoms before the fill."""
        # The average of a shard and neutral elements would not be exact: replicas are averaged.
        self.filled = {i for i in self.new_partial if units.dst_kinds[i] != "avg"}
        """Atoms that may stand on digits until they are filled."""
        self.cut_off: dict[int, int] = {}
        """For a filled atom, the free atom that takes its digit when it is filled."""
        self.spread = self.spreads()

    def run(self) -> list[Move]:
        self.slice()
        self.reduce()
        self.exchange()
        self.gather()
        self.fill()
        return self.moves

    def move(self, kind: StepKind, to: dict[int, int], reduction: Reduction | None = None) -> None:
        """Adds a collective that moves atoms to new places; nothing if `to` is empty."""
        if not to:
            return
        for atom, place in to.items():
            self.place[atom] = place
            if self.kinds[atom] and place != PARTIAL:
                self.kinds[atom] = None
        self.moves.append(Move(kind, reduction, tuple(self.place), tuple(self.kinds)))

    def standing(self) -> dict[int, int]:
        """The atom on each digit in use."""
        return {place: atom for atom, place in enumerate(self.place) if place >= 0}

    def chain_end(self, digit: int) -> int | None:
        """The unused digit at which the chain of atoms from `digit` on ends.

        None if the last atom of the chain will be free.
        """
        standing = self.standing()
        while digit in standing:
            digit = self.goal[standing[digit]]
        return digit if digit >= 0 else None

    def ends_filled(self, digit: int) -> bool:
        """Whether the chain of atoms from `digit` on ends with an atom that will be filled."""
        standing = self.standing()
        last = None
        while digit in standing and last not in self.filled:
            last = standing[digit]
            digit = self.goal[last]
        return last in self.filled

    def spreads(self) -> bool:
        """Whether it saves bytes if free atoms stand on digits while results are combined."""
        n_combined = math.prod(self.units.sizes[atom] for atom in self.reduced())
        wanted = {goal: atom for atom, goal in enumerate(self.goal) if goal >= 0}
        exchanges = any(
            (goal >= 0 and goal != place) or wanted.get(place, atom) != atom
            for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
            if place >= 0
        )
        pairs = enumerate(zip(self.place, self.goal, strict=True))
        replicas = any(p == g == FREE and atom not in self.new_partial for atom, (p, g) in pairs)
        return n_combined > 1 and (exchanges or (n_combined > 2 and replicas))

    def sends(self) -> bool:
        """Whether anything has to be sent, so that smaller shards save bytes."""
        places = enumerate(zip(self.place, self.goal, strict=True))
        moves = any(p >= 0 and p != g and atom not in self.filled for atom, (p, g) in places)
        return moves or bool(self.reduced())

    def slice(self) -> None:
        to = {}
        for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True)):
            if place == FREE:
                end = self.chain_end(goal) if goal >= 0 else None
                if atom in self.filled or (goal >= 0 and self.ends_filled(goal)):
                    spare = self.sends()
                else:
                    spare = self.spread and atom not in self.new_partial
                if end is None and spare:
                    end = self.units.carve(self.units.sizes[atom])
                if end is not None:
                    to[atom] = end
        self.move("slice", to)

    def reduced(self) -> list[int]:
        """Atoms whose partial results have to be combined, in the order of their axes."""
        return [
            atom
            for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
            if place == PARTIAL and goal != PARTIAL
        ]

    def reduce(self) -> None:
        todo = self.reduced()
        while todo:
            kind = self.kinds[todo[-1]]
            of_kind = []
            while todo and self.kinds[todo[-1]] == kind:
                of_kind.append(todo.pop())
            to = {}
            for atom in reversed(of_kind):
                goal = self.goal[atom]
                end = self.chain_end(goal) if goal >= 0 else None
                if end is None and (goal >= 0 or self.spread):
                    end = self.units.carve(self.units.sizes[atom])
                if end is not None:
                    to[atom] = end
            self.move("reduce_scatter", to, kind)
            self.move("all_reduce", {a: FREE for a in reversed(of_kind) if a not in to}, kind)

    def exchange(self) -> None:
        standing = self.standing()
        to = {
            atom: goal
            for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
            if goal >= 0 and place != goal
        }
        for atom, goal in list(to.items()):
            if self.place[atom] == FREE and standing.get(goal) in self.filled:
                self.cut_off[standing[goal]] = atom
                del to[atom]
        arriving = {goal: atom for atom, goal in to.items()}
        for digit in arriving:
            leaving = standing.get(digit)
            if leaving is not None and leaving not in to:
                # This atom will be free; it takes the digit that its chain leaves behind.
                to[leaving] = self.left_behind(digit, arriving)
        left = {self.place[atom] for atom in to} - set(to.values())
        newly_used = set(to.values()) - {self.place[atom] for atom in to}
        if not newly_used:
            self.move("collective_permute", to)
        elif all(self.place[atom] in left and place in newly_used for atom, place in to.items()):
            self.move("all_to_all", to)
        elif self.one_exchange:
            self.move("exchange", to)
        else:
            self.permute_and_exchange(to, newly_used)

    def permute_and_exchange(self, to: dict[int, int], newly_used: set[int]) -> None:
        """The exchange as two collectives.

        In the first, a permutation, the last atom of each chain takes the digit that the chain
        leaves behind; in the second, an all-to-all, it moves to its own digit.
        """
        arriving = {place: atom for atom, place in to.items()}
        first = dict(to)
        for digit in newly_used:
            first[arriving[digit]] = self.left_behind(digit, arriving)
        last = {arriving[digit]: digit for digit in newly_used}
        self.move("collective_permute", {a: p for a, p in first.items() if p != self.place[a]})
        self.move("all_to_all", last)

    def left_behind(self, digit: int, arriving: dict[int, int]) -> int:
        """The digit, or FREE, that the chain which ends at `digit` leaves when it moves on."""
        while digit in arriving:
            digit = self.place[arriving[digit]]
        return digit

    def gather(self) -> None:
        self.move(
            "all_gather",
            {
                atom: FREE
                for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
                if place >= 0 and goal == FREE and atom not in self.filled
            },
        )

    def fill(self) -> None:
        # Kinds combine from the last axis to the first, so they are filled from first to last.
        for atom in self.new_partial:
            self.kinds[atom] = kind = self.units.dst_kinds[atom]
            successor = self.cut_off.get(atom)
            takes_digit = {} if successor is None else {successor: self.goal[successor]}
            self.move("fill", {atom: PARTIAL, **takes_digit}, kind)


def fewest_bytes(units: Refined, *, one_exchange: bool) -> list[Move]:
    """The moves from source to destination.

    Args:
        units: Source and destination; gets more digits if a step needs them.
        one_exchange: Whether a permutation and an all-to-all may be one collective.
    """
    return _Construction(units, one_exchange).run()
