"""Bounding and searching in rounds: how `auto` solves problems that are too wide to eliminate.

In each round, one thread ascends in the dual (messages and memory prices), which gives a lower
bound; the other moves patches of the graph to their exact optimum, which gives choices. Between
rounds, each uses the results of the other: the dual's prices steer the search, the best cost sets
the dual's step size, and labels are dropped if every choice with them costs more than the best one
known, after which the exact reduction can go on. A round is an amount of work, not of time, so that
the same number of steps gives the same answer on every machine.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from autoshard.base._native import core
from autoshard.solvers.message_passing import aim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autoshard.solvers.session import SolverSession

# [measured on the IOPDDL instances A to S]
MOST_WORK = 3e7
"""The most additions in one round, about 0.1 s."""
WORK = 200
"""Additions in one round for each label and table entry, if that is less: for small problems."""
WARM_UP = 20
"""Steps of the dual before the search begins at its prices."""
PATIENCE = 30
"""Every this many rounds without a feasible choice, the search takes over the dual's prices."""
SCOUT = 40
"""Every this many rounds, a second search begins at the dual's prices, while these improve."""
STALLED = 1e-9
"""If the bound rises by at most this fraction of itself in a round, its prices count as final: a
search that begins at them finds the best choice at once, if that is the one that they imply."""
NEWS = 1e-4
"""The search takes over the dual's prices when the bound has risen by this fraction of itself."""
TIGHTEN = 100
"""Every this many rounds, labels are dropped by the bound."""
WORTH = 0.05
"""The fraction of the labels that have to be dropped for another reduction to pay."""


class Chain:
    """A dual and a search that run side by side on one reduced problem.

    Args:
        instance: With at least one node.
        run: The session that choices and bounds are offered to.
    """

    def __init__(self, instance: core.Instance, run: SolverSession) -> None:
        self.run = run
        self.n_rounds = 0
        self._begin(instance)
        self.dual.step(1.0, 1)  # a first bound, at prices of 0

    def _begin(self, instance: core.Instance) -> None:
        self.instance = instance
        self.dual = core.Dual(instance)
        self.search = core.Search(instance, self.run.seed + self.n_rounds)
        self.work = min(MOST_WORK, WORK * float(instance.n_labels + instance.n_entries))
        # a step of the dual is four sweeps, each of which reads every table twice
        self.steps = max(1, int(self.work / (20 * (instance.n_labels + instance.n_entries))))
        self.told = math.inf
        self.is_tight = self.has_stalled = False

    def go_on(self, most_rounds: float = math.inf) -> None:
        """Do rounds until the run says stop, at most `most_rounds`."""
        last = self.n_rounds + most_rounds
        with ThreadPoolExecutor(1) as pool:
            while self.n_rounds < last and self.run.step():
                self._round(pool)

    def begin(self, start: NDArray[np.int64] | None) -> None:
        """Compute first prices and a choice at them; this is one step of the run.

        Args:
            start: A strategy for each original node, to begin with where it is not reduced away.
        """
        if not self.run.step():
            return
        for _ in range(WARM_UP):
            self.dual.step(self._target(), 1)
            if self.run.time_left() <= 0.0:
                break
        labels = self.dual.choice
        if start is not None:
            known = self.instance.locate(start)
            labels = np.where(known < 0, labels, known)
        self.search.start(labels, self.dual.prices)
        self._send_scout()
        self._report()

    def _round(self, pool: ThreadPoolExecutor) -> None:
        self.n_rounds += 1
        before = self.dual.bound
        bounding = None
        if not self.dual.converged:
            bounding = pool.submit(self.dual.step, self._target(), self.steps)
        try:
            if math.isinf(self.search.best_cost):
                self.search.sweep()
            elif self.n_rounds % 2 == 0 and bounding is not None:
                self.scout.sweep()
            else:
                self.search.improve(self.work)
        finally:
            if bounding is not None:
                bounding.result()
        found_first = math.isinf(self.run.objective)
        self._report()
        if math.isinf(self.run.objective):
            if self.n_rounds % PATIENCE == 0:
                self.search.aim(self.dual.prices)
            return
        if found_first:
            self.dual.try_prices(self.search.prices)
        if math.isinf(self.told) or self.dual.bound > self.told + NEWS * abs(self.told):
            self.told = self.dual.bound
            self.search.aim(self.dual.prices)
        if self.scout.best_cost < self.search.best_cost:
            self.search.start(self.scout.best, self.dual.prices)
            self._report()
        stalls = self.dual.bound - before <= STALLED * abs(self.dual.bound)
        if self.n_rounds % SCOUT == 0 or (stalls and not self.has_stalled):
            self.has_stalled |= stalls
            self._send_scout()
        if self.dual.converged and not self.is_tight:
            self.is_tight = True
            self._tighten()
        elif self.n_rounds % TIGHTEN == 0 and not self.is_tight:
            self._tighten()

    def _send_scout(self) -> None:
        """Begin a second search at the dual's own choice: its prices may lead to another region."""
        self.scout = core.Search(self.instance, self.run.seed + self.n_rounds)
        self.scout.start(self.dual.choice, self.dual.prices)

    def _target(self) -> float:
        return aim(self.dual, self.instance, self.run)

    def _report(self) -> None:
        self.run.raise_bound(self.dual.bound + self.instance.constant)
        if self.search.best_cost + self.instance.constant < self.run.objective:
            self.run.offer(self.instance.expand(self.search.best).tolist(), by="search")
        elif math.isinf(self.search.best_cost):
            self.run.offer(self.instance.expand(self.search.present).tolist(), by="search")

    def _tighten(self) -> None:
        """Drop labels that the bound proves too expensive, and reduce what is left."""
        best = self.run.best
        if best is None:  # without a feasible choice, nothing is proved too expensive
            return
        dropped = self.dual.dear(self.run.objective - self.instance.constant)
        if dropped.mean() < WORTH:
            return
        smaller = self.instance.without(dropped)
        if not smaller.possible:
            self.run.raise_bound(self.run.objective)
            return
        if not smaller.n_nodes:
            choice = smaller.expand(np.zeros(0, dtype=np.int32)).tolist()
            self.run.offer(choice, by="reduction")
            self.run.raise_bound(min(smaller.constant, self.run.objective))
            return
        labels = smaller.locate(np.array(best, dtype=np.int64))
        if (labels < 0).any():  # the reduction has dropped `best` for one that costs no more
            return
        prices = smaller.carry(self.instance, self.dual.prices)
        self._begin(smaller)
        self.dual.try_prices(prices)
        self.dual.step(self._target(), 1)  # the scout begins at the dual's choice
        self.search.start(labels, prices)
        self._send_scout()
