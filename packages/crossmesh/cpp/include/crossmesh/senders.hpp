// Who sends: the ways to choose it.
#pragma once

#include <vector>

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// Each flow from the lowest host that holds it, in the order given: the baseline of section 3.2
/// (Zhuang et al., MLSys 2023).
std::vector<Send> naive(const Problem& problem);

/// Each flow from the host that would be done with it first (then the lowest), the largest flow
/// first: the greedy solution of Eq. 4. A term of a sum comes, if possible, from a host that adds
/// another term anyway or needs the sum. Receivers follow the sender in a circle of all hosts, so
/// that an all-gather runs in rings; but the one that sends most comes last, where it need not pass
/// the bytes on.
///
/// The paper calls the greedy choice optimal; it is not even for one kind of flow (3, 3, 2, 2, 2 on
/// two hosts). On m hosts of equal rate it is within 4/3 - 1/(3m) of the optimum if every host
/// holds every slice (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), else within
/// ceil(log2(m)) + 1 (Azar, Naor, Rom, "The Competitiveness of On-Line Assignments", 1995).
///
/// Grows as the flows times their senders and receivers.
std::vector<Send> balanced(const Problem& problem);

/// What is worth a change: it must end before this part of the time.
constexpr double kWorth = 0.99;

/// The same broadcasts, each along a binomial tree if by itself it ends at least 1 % earlier so:
/// what is too short for chunks takes as many steps as there are hosts along a chain, and as many
/// as their number has digits along a tree.
std::vector<Send> along_trees(const Problem& problem, std::vector<Send> sends);

/// Flows cut among the hosts that hold them so that the busiest interface is as little busy as it
/// can be (`level`); who passes a broadcast on is chosen with it, where hosts both send and
/// receive. Sums are not cut. Flows of the same hosts lie on a line, next to those of the same
/// receivers, and each host gets a stretch of it: there are at most as many cuts as hosts in each
/// such group.
std::vector<Send> shared(const Problem& problem);

}  // namespace crossmesh
