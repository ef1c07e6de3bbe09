"""The compiled core's search for an order in plain Python; tests compare the two.

`cpp/include/crossmesh/greedy.hpp` and `depth_first.hpp` say what the functions do and why. Where
the core is clever (a tournament of lanes), this is plain (the least key).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crossmesh.reference.simulate import BELOW, Passage, Ports, occupy, start_s

# As in the headers and sources.
LUCK = 0.5
DEEPEST = 256


def _loads(passages: Iterable[Passage], n_ports: int) -> list[float]:
    load_s = [0.0] * n_ports
    for passed in passages:
        for port, first_s, last_s in passed.uses:
            load_s[port] += last_s - first_s
    return load_s


def floor_s(passages: Sequence[Passage], n_ports: int) -> float:
    """No order of the sends ends before: the busiest port, what precedes and what follows it."""
    load_s = _loads(passages, n_ports)
    head_s = [math.inf] * n_ports
    tail_s = [math.inf] * n_ports
    bound_s = 0.0
    for passed in passages:
        bound_s = max(bound_s, passed.total_s)
        for port, first_s, last_s in passed.uses:
            head_s[port] = min(head_s[port], first_s)
            tail_s[port] = min(tail_s[port], passed.total_s - last_s)
    for load, head, tail in zip(load_s, head_s, tail_s, strict=True):
        if load > 0:
            bound_s = max(bound_s, head + load + tail)
    return bound_s


class SendLane(NamedTuple):
    """Sends along one path, the next one last, and the ports that they use."""

    sends: list[int]
    ports: list[int]


def greedy(
    passages: Sequence[Passage],
    paths: Sequence[Sequence[int]],
    n_ports: int,
    seed: int,
    steps: int,
) -> tuple[float, list[int]]:
    """Always the send that can start first, of these the one whose ports have most to do."""
    members: dict[tuple[int, ...], list[int]] = {}
    for index, path in enumerate(paths):
        members.setdefault(tuple(path), []).append(index)
    lanes = []
    for sends in members.values():
        ports = list(dict.fromkeys(port for port, _, _ in passages[sends[0]].uses))
        sends.sort(key=lambda index: (-passages[index].total_s, index))
        lanes.append(SendLane(sends[::-1], ports))
    cost = len(passages) * sum(1 + len(lane.ports) for lane in lanes)

    goal_s = floor_s(passages, n_ports) / BELOW
    random = _SplitMix64(seed)
    rank, luck = list(range(len(lanes))), [1.0] * len(lanes)
    best = _dispatch(passages, lanes, n_ports, cost > steps, rank, luck)
    for _ in range(1, steps // max(cost, 1)):
        if best[0] <= goal_s:
            break
        rank = random.shuffled(range(len(lanes)))
        luck = [1.0 - LUCK * ((random.next() >> 11) * 2.0**-53) for _ in lanes]
        found = _dispatch(passages, lanes, n_ports, False, rank, luck)
        if found[0] < best[0] * BELOW:
            best = found
    return best


def _dispatch(
    passages: Sequence[Passage],
    lanes: Sequence[SendLane],
    n_ports: int,
    whole_lanes: bool,
    rank: Sequence[int],
    luck: Sequence[float],
) -> tuple[float, list[int]]:
    waiting = [list(lane.sends) for lane in lanes]
    left_s = _loads(passages, n_ports)
    ports = Ports(n_ports)
    order: list[int] = []
    end_s = 0.0

    def key(lane: int) -> tuple[float, float, int]:
        busiest_s = max([0.0, *(left_s[port] for port in lanes[lane].ports)])
        return ports.start_s(passages[waiting[lane][-1]]), -busiest_s * luck[lane], rank[lane]

    while len(order) < len(passages):
        lane = min((lane for lane in range(len(lanes)) if waiting[lane]), key=key)
        for _ in range(len(waiting[lane]) if whole_lanes else 1):
            send = waiting[lane].pop()
            passed = passages[send]
            at_s = ports.start_s(passed)
            ports.occupy(passed, at_s)
            for port, first_s, last_s in passed.uses:
                left_s[port] -= last_s - first_s
            order.append(send)
            end_s = max(end_s, at_s + passed.total_s)
    return end_s, order


class _SplitMix64:
    """Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        mask = (1 << 64) - 1
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    def shuffled(self, order: Sequence[int]) -> list[int]:
        result = list(order)
        for i in range(len(result), 1, -1):
            j = self.next() % i
            result[i - 1], result[j] = result[j], result[i - 1]
        return result


class Class(NamedTuple):
    """Interchangeable sends, and the ways in which one of them can go."""

    sends: list[int]
    ways: list[Passage]


class _Tree:
    """What all nodes of the search tree share."""

    def __init__(self, classes: Sequence[Class], n_ports: int, best_s: float, steps: int) -> None:
        self.classes = classes
        self.best_s = best_s
        self.best: list[tuple[int, int]] | None = None
        self.steps = steps
        self.needs_s: list[list[float]] = []
        self.tail_s = [math.inf] * n_ports
        self.left_s = [0.0] * n_ports
        for group in classes:
            needs_s = [math.inf] * n_ports
            for passed in group.ways:
                mine_s = [0.0] * n_ports
                for port, first_s, last_s in passed.uses:
                    mine_s[port] = last_s - first_s
                    self.tail_s[port] = min(self.tail_s[port], passed.total_s - last_s)
                needs_s = [min(pair) for pair in zip(needs_s, mine_s, strict=True)]
            self.needs_s.append(needs_s)
            for port in range(n_ports):
                self.left_s[port] += len(group.sends) * needs_s[port]


def depth_first(
    classes: Sequence[Class], n_ports: int, best_s: float, steps: int
) -> tuple[float, list[tuple[int, int]] | None]:
    """The earliest end below `best_s` and its sequence of (send, way), None if none was found."""
    if sum(len(group.sends) for group in classes) > DEEPEST:
        return best_s, None
    tree = _Tree(classes, n_ports, best_s, steps)
    _descend(tree, [0.0] * n_ports, tree.left_s, [0] * len(classes), 0.0, 0.0, [])
    return tree.best_s, tree.best


def _descend(
    tree: _Tree,
    free_s: Sequence[float],
    left_s: Sequence[float],
    done: Sequence[int],
    now_s: float,
    end_s: float,
    taken: list[tuple[int, int]],
) -> None:
    tree.steps -= len(free_s)
    bound_s = end_s
    for free, left, tail in zip(free_s, left_s, tree.tail_s, strict=True):
        if left > 0:
            bound_s = max(bound_s, free + left + tail)
    if bound_s >= tree.best_s * BELOW:
        return
    if len(taken) == sum(len(group.sends) for group in tree.classes):
        tree.best_s, tree.best = end_s, list(taken)
        return
    children: list[tuple[float, float, int, int]] = []
    first_start_s = first_end_s = math.inf
    for i, group in enumerate(tree.classes):
        for k, passed in enumerate(group.ways if done[i] < len(group.sends) else []):
            tree.steps -= 1 + len(passed.uses)
            at_s = start_s(passed, free_s)
            busiest_s = max([0.0, *(left_s[port] for port, _, _ in passed.uses)])
            children.append((at_s, -busiest_s, i, k))
            first_start_s = min(first_start_s, at_s)
            first_end_s = min(first_end_s, at_s + passed.total_s)
    for at_s, _, i, k in sorted(children):
        if tree.steps <= 0:
            return
        if at_s < now_s or (at_s > first_start_s and at_s >= first_end_s):
            continue
        passed = tree.classes[i].ways[k]
        freed_s = list(free_s)
        occupy(passed, at_s, freed_s)
        rest_s = [a - b for a, b in zip(left_s, tree.needs_s[i], strict=True)]
        counts = list(done)
        counts[i] += 1
        taken.append((tree.classes[i].sends[done[i]], k))
        _descend(tree, freed_s, rest_s, counts, at_s, max(end_s, at_s + passed.total_s), taken)
        taken.pop()
