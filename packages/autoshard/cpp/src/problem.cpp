#include "autoshard/problem.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace autoshard {

void Problem::check() const {
  // Labels and nodes are stored in 32 bits.
  constexpr auto most = std::int64_t{1} << 30;
  if (n_nodes > static_cast<std::size_t>(most)) {
    throw std::invalid_argument("a problem has at most 2**30 nodes");
  }
  std::size_t total = 0;
  for (std::size_t node = 0; node < n_nodes; ++node) {
    if (n_strategies[node] < 1 || n_strategies[node] > most) {
      throw std::invalid_argument("a node has at least one strategy; node " +
                                  std::to_string(node) + " has " +
                                  std::to_string(n_strategies[node]));
    }
    total += static_cast<std::size_t>(n_strategies[node]);
  }
  if (total != n_costs) {
    throw std::invalid_argument("costs and usages have one entry a strategy; got " +
                                std::to_string(n_costs) + " for " + std::to_string(total));
  }
  for (std::size_t i = 0; i < n_costs; ++i) {
    if (std::isnan(costs[i]) || costs[i] == -kForbidden || !std::isfinite(usages[i]) ||
        usages[i] < 0) {
      throw std::invalid_argument("costs are numbers or inf and usages are finite and >= 0");
    }
  }
  for (std::size_t edge = 0; edge < n_edges; ++edge) {
    const std::int64_t i = edges[2 * edge], j = edges[2 * edge + 1];
    const auto n = static_cast<std::int64_t>(n_nodes);
    if (i < 0 || j < 0 || i >= n || j >= n || i == j) {
      throw std::invalid_argument("an edge joins two different nodes of " + std::to_string(n) +
                                  "; got (" + std::to_string(i) + ", " + std::to_string(j) + ")");
    }
    // each factor is at most 2**30, so the product fits
    const auto size = n_strategies[i] * n_strategies[j];
    const auto start = table_starts[edge], end = static_cast<std::int64_t>(n_table_entries);
    if (start < 0 || start > end || size > end - start) {
      throw std::invalid_argument("edge " + std::to_string(edge) + " asks for " +
                                  std::to_string(size) + " table entries from " +
                                  std::to_string(start) + "; there are " + std::to_string(end));
    }
  }
  for (std::size_t i = 0; i < n_table_entries; ++i) {
    if (std::isnan(tables[i]) || tables[i] == -kForbidden) {
      throw std::invalid_argument("edge costs are numbers or inf");
    }
  }
  if (std::isnan(limit)) {
    throw std::invalid_argument("the usage limit is a number or inf");
  }
}

}  // namespace autoshard
