// Load balance: which host sends each slice.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace crossmesh {

/// A slice that crosses the network.
struct OldFlow {
  std::int64_t n_bytes;
  std::vector<std::int64_t> sender_hosts;    ///< hosts with a replica, at least one
  std::vector<std::int64_t> receiver_hosts;  ///< hosts that need it
};

/// Bytes per second of each host's network interface, each way.
using Rates = std::map<std::int64_t, double>;

/// Chooses a sender host for each flow: the largest first (then by position), each to the host
/// where it would be sent earliest (then the lowest), at the rate of the slowest host it passes.
///
/// Throws std::invalid_argument if a flow has negative bytes or no sender host, or a host has no
/// finite positive rate.
///
/// Source: Zhuang et al., MLSys 2023, Eq. 4 ("load balance only"). They call the greedy choice
/// optimal; it is not even for one kind of flow (3, 3, 2, 2, 2 on two hosts). On m hosts of equal
/// rate it is within 4/3 - 1/(3m) of the optimum if every host holds every slice (Graham,
/// "Bounds on Multiprocessing Timing Anomalies", 1969), else within ceil(log2(m)) + 1 (Azar, Naor,
/// Rom, "The Competitiveness of On-Line Assignments", 1995).
std::vector<std::int64_t> balance(const std::vector<OldFlow>& flows, const Rates& rates);

}  // namespace crossmesh
