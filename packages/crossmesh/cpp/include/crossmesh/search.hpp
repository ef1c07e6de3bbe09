// The search: which host sends which bytes to which hosts, and in which order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// How senders and order are chosen (Zhuang et al., MLSys 2023, sections 3.2 and 5.3.1).
enum class Method {
  naive,         ///< the lowest senders, in the order of the flows
  load_balance,  ///< `balanced`, or `shared` if split; the order is not optimised
  dfs,           ///< `depth_first` over orders and senders
  greedy,        ///< `greedy` over the orders of `balanced` senders
  ensemble,      ///< `greedy`, then `depth_first` to improve on its result
  all_at_once,   ///< as load_balance; for `simulate_together`
};

/// Sends in their order; together they send each flow exactly once to each host that it must reach.
///
/// With `split`, flows may be cut among the hosts that hold them (`shared`). A broadcast needs all
/// its hosts at the same time, so broadcasts can block each other, as in an all-gather; then each
/// host that a copy must reach gets a separate send. Both are done only if the transfer then ends
/// at least 1 % earlier [chosen: a smaller gain is not worth more sends].
///
/// A search ends early if it reaches a bound. `steps` is the budget of each of up to eight
/// searches; `greedy` and `depth_first` say what they count as a step.
std::vector<Send> search(const Problem& problem, Method method, bool split, std::uint64_t seed,
                         std::int64_t steps);

}  // namespace crossmesh
