"""A machine that executes collectives, message by message: the oracle of `test_algorithms`."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import product, zip_longest

from costmodel import GroupLinks, Tier
from costmodel.hardware.link import slowest_link


@dataclass
class Machine:
    """Devices under units under larger units: innermost first, how many and at which link each.

    A unit's link carries all that its devices send out of it, and all that they receive. Messages
    to another host do not pass the links inside; further ones pass all levels on their way.
    """

    tiers: tuple[Tier, ...]

    @property
    def inner(self):
        """Devices in one unit that a tier joins."""
        return [math.prod(tier.size for tier in self.tiers[:k]) for k in range(len(self.tiers))]

    @property
    def n(self):
        return math.prod(tier.size for tier in self.tiers)

    @property
    def group(self):
        """What one group of all devices sees, as `Cluster.links` would say."""
        flat = slowest_link(tier.link for tier in self.tiers)
        shares = (t.link.times(1 / c) for t, c in zip(self.tiers, self.inner, strict=True))
        return GroupLinks(
            size=self.n, flat=flat, single=flat, spread=slowest_link(shares), tiers=self.tiers
        )

    def digits(self, device):
        return [device // c % tier.size for c, tier in zip(self.inner, self.tiers, strict=True)]

    def peers(self, k):
        """Groups of devices that differ only in which unit of tier `k` they are in."""
        groups = defaultdict(list)
        for device in range(self.n):
            rest = self.digits(device)
            rest[k] = None
            groups[tuple(rest)].append(device)
        return list(groups.values())

    def step_time(self, messages):
        """Seconds of simultaneous messages (sender, receiver, bytes)."""
        latency_s, sent, received = 0.0, defaultdict(float), defaultdict(float)
        for sender, receiver, n_bytes in messages:
            a, b = self.digits(sender), self.digits(receiver)
            last = max(k for k in range(len(a)) if a[k] != b[k])
            latency_s = max(latency_s, self.tiers[last].link.latency_s)
            for k in range(min(last, 1), last + 1):
                sent[k, sender // self.inner[k]] += n_bytes
                received[k, receiver // self.inner[k]] += n_bytes
        busiest = 0.0
        for k, unit in {*sent, *received}:
            link = self.tiers[k].link
            fewer, more = sorted((sent[k, unit], received[k, unit]))
            one_way_s = (more - fewer) / link.bandwidth_bytes_per_s
            busiest = max(busiest, fewer / link.both_ways_bytes_per_s + one_way_s)
        return latency_s + busiest


# The algorithms: lists of steps, each a list of messages (sender, receiver, blocks, what happens).
# `copy` replaces what the receiver has, `add` adds to it, `move` leaves the sender without it.


def even(blocks, n):
    assert len(blocks) % n == 0
    return [blocks[i * len(blocks) // n : (i + 1) * len(blocks) // n] for i in range(n)]


def joined(lists):
    return [item for some in lists for item in some]


def ring_all_gather(who, held):
    n = len(who)
    return [
        [(who[i], who[(i + 1) % n], held[(i - t) % n], "copy") for i in range(n)]
        for t in range(n - 1)
    ]


def bruck_all_gather(who, held):
    n, steps, have = len(who), [], 1
    while have < n:
        count = min(have, n - have)
        steps.append(
            [
                (
                    who[i],
                    who[(i - have) % n],
                    joined(held[(i + j) % n] for j in range(count)),
                    "copy",
                )
                for i in range(n)
            ]
        )
        have += count
    return steps


def ring_reduce_scatter(who, parts):
    n = len(who)
    return [
        [(who[i], who[(i + 1) % n], parts[(i - t - 1) % n], "add") for i in range(n)]
        for t in range(n - 1)
    ]


def fold(n):
    """Who gives its addend to whom in groups that are no power of two, and who goes on."""
    extra = n - 2 ** (n.bit_length() - 1)
    pairs = [(2 * i, 2 * i + 1) for i in range(extra)]
    return pairs, [*(b for _, b in pairs), *range(2 * extra, n)]


def halving_steps(who, parts):
    """Recursive halving among a power of two; each ends with its own part."""
    n, steps, width = len(who), [], len(who)
    while width > 1:
        half = width // 2
        step = []
        for i in range(n):
            first = i // width * width
            lower = i - first < half
            wanted = range(first + half, first + width) if lower else range(first, first + half)
            step.append(
                (
                    who[i],
                    who[i + half if lower else i - half],
                    joined(parts[j] for j in wanted),
                    "add",
                )
            )
        steps.append(step)
        width = half
    return steps


def recursive_halving(who, parts):
    pairs, survivors = fold(len(who))
    made = {b: [*parts[a], *parts[b]] for a, b in pairs}
    before = [[(who[a], who[b], joined(parts), "add") for a, b in pairs]] if pairs else []
    after = [[(who[b], who[a], parts[a], "copy") for a, b in pairs]] if pairs else []
    middle = halving_steps([who[i] for i in survivors], [made.get(i, parts[i]) for i in survivors])
    return before + middle + after


def folded(who, blocks, among):
    pairs, survivors = fold(len(who))
    before = [[(who[a], who[b], blocks, "add") for a, b in pairs]] if pairs else []
    after = [[(who[b], who[a], blocks, "copy") for a, b in pairs]] if pairs else []
    return before + among([who[i] for i in survivors]) + after


def recursive_doubling(who, blocks):
    def among(who):
        distances = [1 << j for j in range(len(who).bit_length() - 1)]
        return [[(who[i], who[i ^ d], blocks, "add") for i in range(len(who))] for d in distances]

    return folded(who, blocks, among)


def rabenseifner(who, blocks):
    def among(who):
        parts = even(blocks, len(who))
        return halving_steps(who, parts) + bruck_all_gather(who, parts)

    return folded(who, blocks, among)


def intervals(n):
    """Of each round of a binomial tree, (head, middle, end): the head sends to the middle."""
    rounds, todo = [], [(0, n)]
    while any(end - head > 1 for head, end in todo):
        cut = [(head, (head + end + 1) // 2, end) for head, end in todo if end - head > 1]
        rounds.append(cut)
        alone = [(head, end) for head, end in todo if end - head == 1]
        todo = alone + [part for a, m, b in cut for part in ((a, m), (m, b))]
    return rounds


def binomial_broadcast(who, blocks):
    return [[(who[a], who[m], blocks, "copy") for a, m, _ in cut] for cut in intervals(len(who))]


def binomial_scatter(who, parts):
    return [
        [(who[a], who[m], joined(parts[m:b]), "copy") for a, m, b in cut]
        for cut in intervals(len(who))
    ]


def chain(who, blocks, n_chunks):
    chunks, hops = even(blocks, n_chunks), len(who) - 1
    return [
        [(who[i], who[i + 1], chunks[t - i], "copy") for i in range(hops) if 0 <= t - i < n_chunks]
        for t in range(hops + n_chunks - 1)
    ]


# Phases: the steps, and the blocks that each member has, or answers for, afterwards.


def all_gather(machine, name, who, lists):
    steps = {"ring": ring_all_gather, "bruck": bruck_all_gather}[name](who, lists)
    return steps, [joined(lists)] * len(who)


def reduce_scatter(machine, name, who, lists):
    parts = even(lists[0], len(who))
    named = {"ring": ring_reduce_scatter, "recursive halving": recursive_halving}
    return named[name](who, parts), parts


def all_reduce(machine, name, who, lists):
    if name == "ring":
        parts = even(lists[0], len(who))
        return ring_reduce_scatter(who, parts) + ring_all_gather(who, parts), lists
    named = {"recursive doubling": recursive_doubling, "rabenseifner": rabenseifner}
    return named[name](who, lists[0]), lists


def scatter(machine, name, who, lists):
    parts = even(lists[0], len(who))
    return binomial_scatter(who, parts) if lists[0] else [], parts


def broadcast(machine, name, who, lists):
    after = [lists[0]] * len(who)
    if not lists[0]:
        return [], after
    if name == "binomial":
        return binomial_broadcast(who, lists[0]), after
    if name == "scatter and all-gather":
        parts = even(lists[0], len(who))
        return binomial_scatter(who, parts) + bruck_all_gather(who, parts), after
    return chain(who, lists[0], int(name.split()[2])), after


def all_to_all(machine, name, who, lists):
    if len(who) == machine.n and name == "pairwise":
        return by_distance(machine), lists
    # Members differ in the unit of one tier, or, if they are all devices, in everything.
    first, second = machine.digits(who[0]), machine.digits(who[1])
    k = next(k for k in range(len(first)) if first[k] != second[k])
    digit = (lambda d: d) if len(who) == machine.n else (lambda d: machine.digits(d)[k])
    n = len(who)
    wanted = [[[c for c in mine if digit(c[1]) == j] for j in range(n)] for mine in lists]
    return exchange(name, who, wanted), lists


def permute(machine, name, who, lists):
    """Each device sends to its peer in the next unit of the outermost tier."""
    to = {
        a: peers[(i + 1) % len(peers)] for peers in machine.peers(-1) for i, a in enumerate(peers)
    }
    return [[(a, to[a], lists[a], "copy") for a in who]], lists


def point_to_point(machine, name, who, lists):
    """The first device sends to the last, which is in another unit of every tier."""
    return [[(who[0], who[-1], lists[0], "copy")]], lists


PHASES = {
    f.__name__: f
    for f in (
        all_gather,
        all_reduce,
        all_to_all,
        broadcast,
        permute,
        point_to_point,
        reduce_scatter,
        scatter,
    )
}


def exchange(name, who, wanted):
    """All-to-all; `wanted[i][j]` are the blocks that `i` has for `j`, or for whoever is past it."""
    n = len(who)
    if name == "pairwise":
        return [
            [(who[i], who[(i + t) % n], wanted[i][(i + t) % n], "move") for i in range(n)]
            for t in range(1, n)
        ]
    steps, at = [], {(i, j): i for i in range(n) for j in range(n)}
    for bit in (1 << b for b in range((n - 1).bit_length())):
        step = []
        for i in range(n):
            moving = [(s, d) for (s, d), where in at.items() if where == i and (d - s) % n & bit]
            blocks = joined(wanted[s][d] for s, d in moving)
            step.append((who[i], who[(i + bit) % n], blocks, "move"))
        for s, d in at:
            if (d - s) % n & bit:
                at[s, d] = (at[s, d] + bit) % n
        steps.append(step)
    return steps


def together(schedules):
    """Several groups at the same time."""
    return [joined(steps) for steps in zip_longest(*schedules, fillvalue=[])]


# Executing a choice


def by_distance(machine):
    """A pairwise all-to-all in which all messages of a step go equally far."""
    steps = []
    for offsets in product(*(range(tier.size) for tier in machine.tiers)):
        if any(offsets):
            step = []
            for a in range(machine.n):
                to = sum(
                    (digit + offset) % tier.size * c
                    for digit, offset, tier, c in zip(
                        machine.digits(a), offsets, machine.tiers, machine.inner, strict=True
                    )
                )
                step.append((a, to, [(a, to)], "move"))
            steps.append(step)
    return steps


def phases_of(machine, kind, choice):
    """Of each phase the collective, the algorithm and the groups that run it."""
    if not choice.phases:
        return [(kind, choice.algorithm, [list(range(machine.n))])]
    outwards = list(range(len(machine.tiers)))
    tiers = {
        "all_gather": outwards[::-1],
        "reduce_scatter": outwards,
        "all_to_all": outwards,
    }.get(kind, outwards + outwards[-2::-1])
    found = []
    for k, text in zip(tiers, choice.phases, strict=True):
        phase, size, name = re.fullmatch(r"(\w+) of (\d+): (.*)", text).groups()
        assert int(size) == machine.tiers[k].size
        found.append((phase, name, machine.peers(k)))
    return found


def execute(machine, kind, choice, n_bytes):
    """Run what a choice names: its seconds, once all devices are found to hold what they should."""
    n, everyone = machine.n, range(machine.n)
    whole = 2**n - 1  # bit `d`: the addend of device `d` is in it
    phases = phases_of(machine, kind, choice)
    chunks = [int(name.split()[2]) for _, name, _ in phases if name.startswith("chain")]
    # Divisible by all that it is cut into on the way.
    folded_sizes = [1 << size.bit_length() - 1 for size in (n, *(t.size for t in machine.tiers))]
    count = math.lcm(n, folded_sizes[0], n * math.prod(folded_sizes[1:])) * max(chunks, default=1)
    blocks = list(range(count))
    block_bytes = n_bytes / len(blocks)
    if kind == "all_to_all":
        blocks, block_bytes = list(product(everyone, everyone)), n_bytes / n
        has = [{(d, to): whole for to in everyone} for d in everyone]
    elif kind == "all_gather":
        has = [dict.fromkeys(part, whole) for part in even(blocks, n)]
    elif kind == "broadcast":
        has = [dict.fromkeys(blocks, whole), *({} for _ in everyone[1:])]
    else:
        has = [dict.fromkeys(blocks, 1 << d) for d in everyone]

    seconds = 0.0
    owned = [list(mine) for mine in has]
    for phase, name, groups in phases:
        schedules = []
        for who in groups:
            lists = [owned[d] for d in who]
            steps, after = PHASES[phase](machine, name, who, lists)
            schedules.append(steps)
            for d, mine in zip(who, after, strict=True):
                owned[d] = mine
        for step in together(schedules):
            seconds += machine.step_time([(a, b, len(c) * block_bytes) for a, b, c, _ in step])
            deliver(has, step)
        if phase == "all_to_all":
            owned = [list(mine) for mine in has]
    if kind == "point_to_point":
        assert [mine[0] for mine in has] == [1 << d for d in (*everyone[:-1], 0)]
        return seconds
    if kind == "permute":
        assert sorted(mine[0] for mine in has) == [1 << d for d in everyone]
        return seconds
    complete = [{c for c, addends in mine.items() if addends == whole} for mine in has]
    if kind == "all_to_all":
        assert complete == [{(a, d) for a in everyone} for d in everyone]
    elif kind == "reduce_scatter":
        assert sorted(joined(owned)) == blocks
        assert len({len(mine) for mine in owned}) == 1
        assert all(set(mine) <= full for mine, full in zip(owned, complete, strict=True))
    else:
        assert all(full == set(blocks) for full in complete)
    return seconds


def deliver(has, step):
    """What simultaneous messages change."""
    sent = [(b, [(c, has[a][c]) for c in cs], how) for a, b, cs, how in step]
    for a, _, cs, how in step:
        for c in cs if how == "move" else ():
            del has[a][c]
    for b, content, how in sent:
        for c, addends in content:
            assert how != "add" or not has[b][c] & addends, "an addend would count twice"
            has[b][c] = has[b][c] | addends if how == "add" else addends
