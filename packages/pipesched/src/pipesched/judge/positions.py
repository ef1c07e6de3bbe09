"""The position of every action of a schedule, and the checks of completeness and placement."""

from __future__ import annotations

from typing import NoReturn

from pipesched.base.action import Action
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.errors import InternalError
from pipesched.judge.broken import ScheduleError
from pipesched.schedule.schedule import Schedule

Place = tuple[int, int]
"""A rank, and a position in its list."""

_COMPUTING = (
    Kind.FORWARD,
    Kind.BACKWARD,
    Kind.INPUT_GRADIENT,
    Kind.WEIGHT_GRADIENT,
    Kind.RECOMPUTE,
)
_MOVING = (Kind.SEND, Kind.RECEIVE)
_ONCE_A_STEP = (Kind.REDUCE, Kind.UPDATE)


class Positions:
    """The place of each action of a schedule, after a check of completeness and placement.

    Raises:
        ScheduleError: The schedule breaks one of these rules.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.communicates = schedule.communicates
        n_microbatches = schedule.n_microbatches
        self._edge_index = {edge: i for i, edge in enumerate(schedule.edges)}
        none: list[Place | None] = [None]
        each, moves = schedule.n_stages * n_microbatches, len(schedule.edges) * n_microbatches
        # For each kind, the place for stage (or edge) x and microbatch m at x * n_microbatches + m.
        self._of = {
            **{kind: none * each for kind in _COMPUTING},
            **{kind: none * moves for kind in _MOVING},
        }
        self._once: dict[tuple[Kind, int, int], int] = {}  # by kind, rank and stage: position
        self._kinds_once: set[Kind] = set()
        self._wrong: tuple[str, Place, Action] | None = None
        for rank, actions in enumerate(schedule.ranks):
            for position, action in enumerate(actions):
                self._put(action, rank, position)
        self._check_completeness()
        self._check_placement()

    def of(self, kind: Kind, index: int, microbatch: int) -> Place:
        """The place of an action that is there; `index` is a stage or, for a transfer, an edge.

        An edge is given by its number in the schedule.
        """
        place = self._of[kind][index * self.schedule.n_microbatches + microbatch]
        if place is None:
            raise InternalError(
                f"an action that passed completeness is there; got no {kind} of {index} and "
                f"microbatch {microbatch} in {self.schedule.name}"
            )
        return place

    def edge(self, edge: Edge) -> int:
        """The number of the edge in the schedule."""
        return self._edge_index[edge]

    def has(self, kind: Kind, stage: int, microbatch: int) -> bool:
        """Whether there is such an action."""
        return self._of[kind][stage * self.schedule.n_microbatches + microbatch] is not None

    def gradient(self, stage: int, microbatch: int) -> Place:
        """The place of the action that produces the gradient of the stage's input."""
        whole = self.has(Kind.BACKWARD, stage, microbatch)
        return self.of(Kind.BACKWARD if whole else Kind.INPUT_GRADIENT, stage, microbatch)

    def last_of_backward(self, stage: int, microbatch: int) -> Place:
        """The place of the action that produces the gradient of the stage's parameters."""
        whole = self.has(Kind.BACKWARD, stage, microbatch)
        return self.of(Kind.BACKWARD if whole else Kind.WEIGHT_GRADIENT, stage, microbatch)

    def once(self, kind: Kind, rank: int, stage: int) -> Place | None:
        """The place of a reduction or an update; None if it is not there."""
        position = self._once.get((kind, rank, stage))
        return None if position is None else (rank, position)

    def _put(self, action: Action, rank: int, position: int) -> None:
        """Store the place of an action; of actions that must not be there, only the first."""
        schedule, kind, microbatch = self.schedule, action.kind, action.microbatch
        allowed = schedule.backward or kind is Kind.FORWARD or kind in _MOVING
        if microbatch is None:
            key = (kind, rank, action.stage)
            self._kinds_once.add(kind)
            allowed = allowed and action.stage < schedule.n_stages
            first = self.once(*key)
            if allowed and first is None:
                self._once[key] = position
                return
        else:
            index = action.stage
            if action.edge is not None:
                index = self._edge_index.get(action.edge, -1)
            allowed = (
                allowed
                and index >= 0
                and action.stage < schedule.n_stages
                and microbatch < schedule.n_microbatches
            )
            at = index * schedule.n_microbatches + microbatch
            first = self._of[kind][at] if allowed else None
            if allowed and first is None:
                self._of[kind][at] = (rank, position)
                return
        if self._wrong is None:
            here = f"rank {rank}, position {position}"
            if first is None:
                rule = (
                    f"{'a' if schedule.backward else 'an inference'} schedule of "
                    f"{schedule.n_stages} stages and {schedule.n_microbatches} microbatches"
                    f"{' and these edges' if action.edge else ''} has no {action}; got it at {here}"
                )
            else:
                first_place = f"rank {first[0]}, position {first[1]}"
                rule = f"an action is there once; got {action} at {first_place} and at {here}"
            self._wrong = (rule, (rank, position), action)

    def _check_completeness(self) -> None:
        schedule = self.schedule
        missing = self._first_missing()
        if self._wrong is not None:
            message, place, action = self._wrong
            if missing is not None and missing.kind is action.kind:
                message += f", and no {missing}{self._needed_by(missing)}"
            _refuse("completeness", message, place, action)
        if missing is not None:
            rank = schedule.placement.rank(missing.stage, missing.one_microbatch)
            raise ScheduleError(
                f"every microbatch goes through every stage; got no {missing} on rank {rank}"
                + self._needed_by(missing),
                rule="completeness",
                rank=rank,
                position=None,
                action=missing,
            )
        if schedule.backward:
            self._check_backwards_are_whole_or_split()
        if self.communicates:
            self._check_transfers()
        for kind in _ONCE_A_STEP:
            if kind in self._kinds_once or (kind is Kind.REDUCE and self._kinds_once):
                self._check_each_stage_has(kind)

    def _check_each_stage_has(self, kind: Kind) -> None:
        for stage in range(self.schedule.n_stages):
            for rank in self.schedule.placement.ranks_of(stage):
                if (kind, rank, stage) not in self._once:
                    raise ScheduleError(
                        "with reductions, every stage of every rank has one, and with updates, it "
                        "has a reduction and an update, as only reduced gradients can be applied; "
                        f"got no {Action(kind, stage)} on rank {rank}",
                        rule="completeness",
                        rank=rank,
                        position=None,
                        action=Action(kind, stage),
                    )

    def _first_missing(self) -> Action | None:
        """The first forward or backward that is missing; None if all are there."""
        forwards = self._of[Kind.FORWARD]
        wholes, inputs, weights = (
            self._of[kind] for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
        )
        n_microbatches = self.schedule.n_microbatches
        for at, forward in enumerate(forwards):
            if forward is None:
                return Action(Kind.FORWARD, *divmod(at, n_microbatches))
        if self.schedule.backward:
            for at, whole in enumerate(wholes):
                if whole is None and (inputs[at] is None or weights[at] is None):
                    kind = Kind.BACKWARD
                    if inputs[at] is not None:
                        kind = Kind.WEIGHT_GRADIENT
                    elif weights[at] is not None:
                        kind = Kind.INPUT_GRADIENT
                    return Action(kind, *divmod(at, n_microbatches))
        return None

    def _needed_by(self, forward: Action) -> str:
        """If a backward needs the missing forward, words that say so; else an empty string."""
        if forward.kind is Kind.FORWARD:
            stage, microbatch = forward.stage, forward.one_microbatch
            for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
                if self.has(kind, stage, microbatch):
                    rank, position = self.of(kind, stage, microbatch)
                    backward = Action(kind, stage, microbatch)
                    return f", which {backward} at rank {rank}, position {position}, needs"
        return ""

    def _check_backwards_are_whole_or_split(self) -> None:
        n_microbatches = self.schedule.n_microbatches
        for at, whole in enumerate(self._of[Kind.BACKWARD]):
            if whole is None:
                continue
            for kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT):
                part = self._of[kind][at]
                if part is not None:
                    action = Action(kind, *divmod(at, n_microbatches))
                    _refuse(
                        "completeness",
                        "a backward is whole (B) or split in two (I and W); got "
                        f"{Action(Kind.BACKWARD, *divmod(at, n_microbatches))} at rank {whole[0]}, "
                        f"position {whole[1]} and {action} at rank {part[0]}, position {part[1]}",
                        part,
                        action,
                    )

    def _check_transfers(self) -> None:
        """Check that every result that changes ranks has a send and a receive, and no other has."""
        placement = self.schedule.placement
        for index, edge in enumerate(self.schedule.edges):
            for m in range(self.schedule.n_microbatches):
                ranks = placement.rank(edge.src[1], m), placement.rank(edge.dst[1], m)
                for kind, rank in zip(_MOVING, ranks, strict=True):
                    place = self._of[kind][index * self.schedule.n_microbatches + m]
                    make = Action.send if kind is Kind.SEND else Action.receive
                    if place is None and ranks[0] != ranks[1]:
                        raise ScheduleError(
                            "a schedule has a send and a receive for every result that changes "
                            f"ranks, or none at all; got no {make(edge, m)} on rank {rank}",
                            rule="completeness",
                            rank=rank,
                            position=None,
                            action=make(edge, m),
                        )
                    if place is not None and ranks[0] == ranks[1]:
                        _refuse(
                            "completeness",
                            f"a result that stays on a rank is not sent; got {make(edge, m)} at "
                            f"rank {place[0]}, position {place[1]}, where both stages are on rank "
                            f"{rank}",
                            place,
                            make(edge, m),
                        )

    def _check_placement(self) -> None:
        placement, n_stages = self.schedule.placement, self.schedule.n_stages
        stages_of = [set(placement.stages_of(rank)) for rank in range(len(self.schedule.ranks))]
        routes = [
            placement.routes[placement.route_of[m] if placement.route_of else 0]
            for m in range(self.schedule.n_microbatches)
        ]
        for rank, actions in enumerate(self.schedule.ranks):
            for position, action in enumerate(actions):
                if action.microbatch is not None:
                    right_rank = routes[action.microbatch][action.stage]
                    if right_rank != rank:
                        _refuse(
                            "placement",
                            f"an action is on the rank of its stage and microbatch; got {action} "
                            f"at rank {rank}, position {position}, instead of rank {right_rank}",
                            (rank, position),
                            action,
                        )
                elif action.stage not in stages_of[rank]:
                    _refuse(
                        "placement",
                        f"a rank reduces and updates its own stages; got {action} at rank {rank}, "
                        f"position {position}, which has "
                        f"{sorted(stages_of[rank])} of {n_stages} stages",
                        (rank, position),
                        action,
                    )


def _refuse(rule: str, message: str, place: Place, action: Action) -> NoReturn:
    raise ScheduleError(message, rule=rule, rank=place[0], position=place[1], action=action)
