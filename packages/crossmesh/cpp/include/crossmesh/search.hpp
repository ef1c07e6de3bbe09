// Who sends which bytes to whom, in which order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// How senders and order are found (Zhuang et al., MLSys 2023, sections 3.2 and 5.3.1).
enum class Method {
  naive,         ///< the lowest senders, in the order given
  load_balance,  ///< `balanced`, or `shared` if split, and no thought for the order
  dfs,           ///< `depth_first` over orders and senders
  greedy,        ///< `greedy` over the orders of `balanced` senders
  ensemble,      ///< `greedy`, then `depth_first` for what is better still
  all_at_once,   ///< as load_balance; for `simulate_together`
};

/// Sends in their order; together they send each flow exactly once to each host that it must reach.
///
/// With `split`, flows may be cut among the hosts that hold them (`shared`). Broadcasts need all
/// their hosts at the same time, and can so be in each other's way, as in an all-gather; then each
/// host that a copy must reach gets a send of its own. Both are done only if it ends at least 1 %
/// earlier [chosen: less is not worth more sends].
///
/// A search ends early if it reaches a bound. `steps` are for each of up to eight searches; what
/// they cost says each of them.
std::vector<Send> search(const Problem& problem, Method method, bool split, std::uint64_t seed,
                         std::int64_t steps);

}  // namespace crossmesh
