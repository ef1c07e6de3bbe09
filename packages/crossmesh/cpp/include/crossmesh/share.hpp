// The exact fractional load balance: how early hosts can send what several of them hold.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "crossmesh/hosts.hpp"

namespace crossmesh {

/// `n_bytes` that `hosts` send together, each of them at most `most`.
struct Demand {
  std::int64_t n_bytes;
  std::vector<Host> hosts;
  std::int64_t most;
};

/// The least time in which every host can send its shares, and for each demand the share of each of
/// its hosts.
///
/// If demands could not be cut, this would be scheduling on unrelated machines, which is NP-hard.
/// Bytes can be cut, so it is a transport problem: within a time T, host h can send T * rate bytes,
/// and all demands fit if and only if a maximum flow from the demands over their hosts, limited by
/// these capacities, carries them all. If it does not, the minimum cut names hosts that are too
/// busy, and the time that these need is the next T. T is a lower bound at each step, and the
/// answer once the flow fits (discrete Newton method: Radzik, "Newton's Method for Fractional
/// Combinatorial Optimization", 1992). Flows are in whole bytes, so only T is rounded.
///
/// The time grows as the number of minimum cuts, rarely more than a few, times a maximum flow
/// (Dinic 1970) on a graph with one arc for each demand and each of its hosts.
///
/// `base` is what each host sends in addition. Every demand has at least one host, and its hosts
/// can send it without exceeding `most`.
std::pair<double, std::vector<std::vector<std::int64_t>>> level(
    const std::vector<Demand>& demands, const std::vector<std::int64_t>& base,
    const std::vector<double>& rates);

}  // namespace crossmesh
