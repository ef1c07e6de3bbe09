"""The fewest bytes from one layout to another, by construction, in common units (`refine`).

Atoms go from the digits of the source to those of the destination. Where an atom goes to a digit
that another one leaves, they form a *chain* (or a cycle), and chains do not touch one another:

1. *slice*: a free atom goes to its digit; if that is taken, to the digit where its chain ends. If
   another atom stands there only to be filled in 5., and anything is sent, to a digit of its own.
2. *reduce*: atoms with partial results that will stand on a digit go there, in the same way, by a
   reduce-scatter; those that will be free by an all-reduce. Of several kinds the last comes first.
3. *exchange*: every chain moves on by one, all of them in one collective. If the digits in use stay
   the same it is a permutation of the devices; if each atom goes to a digit that was not in use it
   is an all-to-all; else it is both in one. An atom that will be free leaves its digit to the next
   of its chain, and takes the digit that the chain leaves behind.
4. *gather*: what will be free is gathered, at last, all at once.
5. *fill*: atoms that are to hold partial results leave their digits, and devices fill up what they
   do not have with neutral elements. Until then such atoms are kept on digits, as shards.

So no device ever holds more than the larger of its two shards. Without partial results the bytes
are the lower bound of `lower_bound`: slices and fills cost nothing, the exchange brings what a
device lacks of a shard as small as possible, the gather the rest.

With partial results combined over `u` devices, replicas would all reduce, and exchange, the same.
Therefore free atoms then *spread*: they, and those that an all-reduce would make free, stand on
digits of their own from 1. or 2. until they are gathered. With `r` devices that want an element,
and a part `e` of the elements to exchange, that is `(u - 1) + e + (r - 1)` messages an element, the
bound again; only an axis with partial results that takes the digit of an axis that becomes free
costs more, as the bound would have one device do all the work. Without anything to exchange it
saves `(u - 2)(f - 1)` messages with `f` replicas; if that is nothing, they do not spread. (One
collective instead, with half again the bytes at most, would let a detour by way of another layout
cost less than the plan.)
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


@dataclass(frozen=True, slots=True)
class Move:
    """One collective in common units."""

    kind: StepKind
    reduction: Reduction | None
    places: Places
    """Afterwards."""
    kinds: Kinds
    """Afterwards."""


class _Schedule:
    def __init__(self, units: Refined, one_exchange: bool) -> None:
        self.units = units
        self.one_exchange = one_exchange
        self.place = list(units.src)
        self.kinds = list(units.src_kinds)
        self.moves: list[Move] = []
        self.made = [
            i
            for i, (old, new) in enumerate(zip(units.src_kinds, units.dst_kinds, strict=True))
            if new and new != old
        ]
        self.goal = [FREE if i in self.made else place for i, place in enumerate(units.dst)]
        # An average of a shard and neutral elements would not be exact: it is made of replicas.
        self.filled = {i for i in self.made if units.dst_kinds[i] != "avg"}
        self.cut_off: dict[int, int] = {}
        """Of filled atoms, the free one that goes to the digit on which they stand."""
        self.spread = self.spreads()

    def run(self) -> list[Move]:
        self.slice()
        self.reduce()
        self.exchange()
        self.gather()
        self.fill()
        return self.moves

    def move(self, kind: StepKind, to: dict[int, int], reduction: Reduction | None = None) -> None:
        """Add a collective that brings atoms to new places, if it moves any."""
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
        """The unused digit where the chain of atoms from `digit` on ends; None if it ends free."""
        standing = self.standing()
        while digit in standing:
            digit = self.goal[standing[digit]]
        return digit if digit >= 0 else None

    def ends_filled(self, digit: int) -> bool:
        """Whether the last atom of the chain from `digit` on is a filled one."""
        standing = self.standing()
        last = None
        while digit in standing and last not in self.filled:
            last = standing[digit]
            digit = self.goal[last]
        return last in self.filled

    def spreads(self) -> bool:
        """Whether it saves bytes that free atoms stand on digits while results are combined."""
        n_combined = math.prod(self.units.sizes[atom] for atom in self.reduced())
        wanted = {goal: atom for atom, goal in enumerate(self.goal) if goal >= 0}
        exchanges = any(
            (goal >= 0 and goal != place) or wanted.get(place, atom) != atom
            for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
            if place >= 0
        )
        pairs = enumerate(zip(self.place, self.goal, strict=True))
        replicas = any(p == g == FREE and atom not in self.made for atom, (p, g) in pairs)
        return n_combined > 1 and (exchanges or (n_combined > 2 and replicas))

    def sends(self) -> bool:
        """Whether shards have to be communicated, so that smaller ones are of use."""
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
                    spare = self.spread and atom not in self.made
                if end is None and spare:
                    end = self.units.carve(self.units.sizes[atom])
                if end is not None:
                    to[atom] = end
        self.move("slice", to)

    def reduced(self) -> list[int]:
        """Atoms whose partial results are to be combined, in the order of their axes."""
        return [
            atom
            for atom, (place, goal) in enumerate(zip(self.place, self.goal, strict=True))
            if place == PARTIAL and goal != PARTIAL
        ]

    def reduce(self) -> None:
        todo = self.reduced()
        while todo:
            kind = self.kinds[todo[-1]]
            alike = []
            while todo and self.kinds[todo[-1]] == kind:
                alike.append(todo.pop())
            to = {}
            for atom in reversed(alike):
                goal = self.goal[atom]
                end = self.chain_end(goal) if goal >= 0 else None
                if end is None and (goal >= 0 or self.spread):
                    end = self.units.carve(self.units.sizes[atom])
                if end is not None:
                    to[atom] = end
            self.move("reduce_scatter", to, kind)
            self.move("all_reduce", {a: FREE for a in reversed(alike) if a not in to}, kind)

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
        comes = {goal: atom for atom, goal in to.items()}
        for digit in comes:
            leaving = standing.get(digit)
            if leaving is not None and leaving not in to:
                # It will be free, and takes the digit that its chain leaves behind.
                behind = digit
                while behind in comes:
                    behind = self.place[comes[behind]]
                to[leaving] = behind
        left = {self.place[atom] for atom in to} - set(to.values())
        taken = set(to.values()) - {self.place[atom] for atom in to}
        if not taken:
            self.move("collective_permute", to)
        elif all(self.place[atom] in left and place in taken for atom, place in to.items()):
            self.move("all_to_all", to)
        elif self.one_exchange:
            self.move("exchange", to)
        else:
            self.permute_and_exchange(to, taken)

    def permute_and_exchange(self, to: dict[int, int], taken: set[int]) -> None:
        """The same in two: the last of each chain first takes the digit that the chain leaves."""
        comes = {place: atom for atom, place in to.items()}
        first = dict(to)
        for digit in taken:
            behind = digit
            while behind in comes:
                behind = self.place[comes[behind]]
            first[comes[digit]] = behind
        last = {comes[digit]: digit for digit in taken}
        self.move("collective_permute", {a: p for a, p in first.items() if p != self.place[a]})
        self.move("all_to_all", last)

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
        # Kinds combine from the last axis to the first, so they are made the other way round.
        for atom in self.made:
            self.kinds[atom] = kind = self.units.dst_kinds[atom]
            cut = self.cut_off.get(atom)
            taken = {} if cut is None else {cut: self.goal[cut]}
            self.move("fill", {atom: PARTIAL, **taken}, kind)


def fewest_bytes(units: Refined, *, one_exchange: bool) -> list[Move]:
    """The moves from source to destination.

    Args:
        units: Gets more digits where a step needs them.
        one_exchange: Whether a permutation and an all-to-all may be one collective.
    """
    return _Schedule(units, one_exchange).run()
