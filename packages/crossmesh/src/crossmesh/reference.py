"""What the compiled core computes, in plain Python; tests compare the two on random transfers.

The functions have the core's names and arguments and, for valid ones, its results to the last bit.
They do not check their arguments.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from crossmesh.geometry import Runs

# As in cpp/src/order.cpp.
PASSES = 16
BUDGET = 1 << 22
SEED = 2023


def cells(
    src: Sequence[Runs], dst: Sequence[Runs], most_boxes: int
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]:
    """The intervals that each source tile has in common with each destination tile, if any."""
    found = []
    for s, held in enumerate(src):
        for d, needed in enumerate(dst):
            common = [
                [
                    (max(a, c), min(b, e))
                    for a, b in runs
                    for c, e in others
                    if max(a, c) < min(b, e)
                ]
                for runs, others in zip(held, needed, strict=True)
            ]
            if all(common):
                found.append((s, d, common))
    if sum(math.prod(map(len, common)) for _, _, common in found) > most_boxes:
        raise ValueError(f"tiles meet in at most {most_boxes} boxes")
    return found


def balance(
    n_bytes: Sequence[int],
    sender_hosts: Sequence[Sequence[int]],
    receiver_hosts: Sequence[Sequence[int]],
    rates: Mapping[int, float],
) -> list[int]:
    """A sender host for each flow: largest first, where it would be sent earliest."""
    load_s: defaultdict[int, float] = defaultdict(float)
    chosen = [0] * len(n_bytes)
    for index in sorted(range(len(n_bytes)), key=lambda index: -n_bytes[index]):
        finish_s = {}
        for host in sender_hosts[index]:
            slowest = min(rates[other] for other in (host, *receiver_hosts[index]))
            finish_s[host] = load_s[host] + n_bytes[index] / slowest
        chosen[index] = min(finish_s, key=lambda host: (finish_s[host], host))
        load_s[chosen[index]] = finish_s[chosen[index]]
    return chosen


def order_jobs(
    durations_s: Sequence[float], ports: Sequence[Sequence[int]], n_devices: Sequence[int]
) -> list[int]:
    """Rounds of jobs without a common port, or the longest first if that ends earlier."""
    longest_first = sorted(range(len(durations_s)), key=lambda job: -durations_s[job])
    random = _SplitMix64(SEED)
    budget = BUDGET
    rounds: list[int] = []
    remaining = longest_first
    while remaining:
        best = _take_disjoint(remaining, ports)
        for _ in range(PASSES):
            if len(best) == len(remaining) or budget < len(remaining):
                break
            budget -= len(remaining)
            candidate = _take_disjoint(random.shuffled(remaining), ports)
            if sum(n_devices[job] for job in candidate) > sum(n_devices[job] for job in best):
                best = candidate
        rounds += best
        done = set(best)
        remaining = [job for job in remaining if job not in done]
    if finish_s(durations_s, ports, rounds) > finish_s(durations_s, ports, longest_first):
        return longest_first
    return rounds


def _take_disjoint(candidates: Sequence[int], ports: Sequence[Sequence[int]]) -> list[int]:
    busy: set[int] = set()
    taken = []
    for job in candidates:
        if busy.isdisjoint(ports[job]):
            busy.update(ports[job])
            taken.append(job)
    return taken


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


def finish_s(
    durations_s: Sequence[float], ports: Sequence[Sequence[int]], order: Sequence[int]
) -> float:
    """When the last job ends, if each in turn starts as soon as its ports are free."""
    free_s: defaultdict[int, float] = defaultdict(float)
    last_s = 0.0
    for job in order:
        stop_s = max((free_s[port] for port in ports[job]), default=0.0) + durations_s[job]
        free_s.update(dict.fromkeys(ports[job], stop_s))
        last_s = max(last_s, stop_s)
    return last_s


def copy_box(
    dst: npt.NDArray[np.generic],
    dst_start: Sequence[int],
    src: npt.NDArray[np.generic],
    src_start: Sequence[int],
    extent: Sequence[int],
) -> None:
    """Copy a box of elements between two arrays of one dtype."""
    if math.prod(extent):
        dst[_slices(dst_start, extent)] = src[_slices(src_start, extent)]


def _slices(start: Sequence[int], extent: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(start, extent, strict=True))
