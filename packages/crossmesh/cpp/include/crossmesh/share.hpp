// The fractional load balance, exactly: how early hosts can send what they share.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "crossmesh/hosts.hpp"

namespace crossmesh {

/// Bytes that `hosts` send together, each of them at most `most`.
struct Demand {
  std::int64_t n_bytes;
  std::vector<Host> hosts;
  std::int64_t most;
};

/// The least time in which every host can send its shares, and the shares of each demand, by its
/// hosts.
///
/// Without cuts this is scheduling on unrelated machines, which is NP-hard; bytes can be cut, and
/// then it is a transport problem: within a time T host h has room for T * rate bytes, and all
/// demands fit if and only if a flow from the demands over their hosts to these rooms carries them
/// all. If it does not, the minimum cut names hosts that are too busy, and the time these need is
/// the next T: a lower bound at each step, and the answer when the flow fits (discrete Newton
/// method: Radzik, "Newton's Method for Fractional Combinatorial Optimization", 1992). Flows are in
/// whole bytes, so nothing is rounded but T.
///
/// Grows as the number of cuts, rarely more than some, times a maximum flow (Dinic 1970) on a graph
/// with an arc for each demand and host of it.
///
/// `base` is what each host sends besides. Every demand has at least one host, and fits under
/// `most`.
std::pair<double, std::vector<std::vector<std::int64_t>>> level(
    const std::vector<Demand>& demands, const std::vector<std::int64_t>& base,
    const std::vector<double>& rates);

}  // namespace crossmesh
