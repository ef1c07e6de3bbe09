// The choice of the senders.
#pragma once

#include <vector>

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// Sends each flow from the lowest host that holds it, in the order of the flows: the baseline of
/// section 3.2 (Zhuang et al., MLSys 2023).
std::vector<Send> naive(const Problem& problem);

/// Sends each flow, the largest first, from the host that would be done with it first (of several,
/// the lowest): the greedy solution of Eq. 4. A term of a sum comes, if possible, from a host that
/// adds another term anyway or needs the sum. Receivers follow the sender in a circle of all hosts,
/// so that an all-gather runs in rings. But the receiver that sends the most comes last, where it
/// need not pass the bytes on.
///
/// The paper calls the greedy choice optimal; it is not, even for one kind of flow (3, 3, 2, 2, 2
/// on two hosts). On m hosts of equal rate it is within 4/3 - 1/(3m) of the optimum if every host
/// holds every slice (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), else within
/// ceil(log2(m)) + 1 (Azar, Naor, Rom, "The Competitiveness of On-Line Assignments", 1995).
///
/// The time grows as the flows times their senders and receivers.
std::vector<Send> balanced(const Problem& problem);

/// A change is worth it only if the transfer then ends before this part of the time.
constexpr double kWorth = 0.99;

/// The same broadcasts, each along a binomial tree if this send alone then ends at least 1 %
/// earlier. A send that is too short for chunks takes as many steps along a chain as there are
/// hosts, and along a tree as many as their number has binary digits.
std::vector<Send> along_trees(const Problem& problem, std::vector<Send> sends);

/// Cuts flows among the hosts that hold them so that the load of the busiest interface is as small
/// as possible (`level`). Where hosts both send and receive, the hosts that forward a broadcast are
/// chosen together with the senders. Sums are not cut. The flows that the same hosts hold are laid
/// on a line, sorted by their receivers, and each host sends a stretch of it: so each such group
/// has at most as many cuts as hosts.
std::vector<Send> shared(const Problem& problem);

}  // namespace crossmesh
