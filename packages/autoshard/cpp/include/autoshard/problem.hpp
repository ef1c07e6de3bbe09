// A problem as the arrays that Python passes; not owned, and not checked before `check`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace autoshard {

inline constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// Views of the arrays of an `autoshard.Problem`; the arrays must outlive this.
struct Problem {
  std::size_t n_nodes = 0;
  const std::int64_t* n_strategies = nullptr;  // of each node
  const double* costs = nullptr;               // of all strategies, node after node
  const double* usages = nullptr;              // in the same order as `costs`
  const std::int64_t* intervals = nullptr;     // (from, to) of each node
  std::size_t n_edges = 0;
  const std::int64_t* edges = nullptr;  // two nodes each
  const double* tables = nullptr;       // row-major
  const std::int64_t* table_starts = nullptr;  // of each edge, in `tables`; edges may share one
  std::size_t n_costs = 0, n_table_entries = 0;
  double limit = kForbidden;  // on the usage at any time

  /// Throws std::invalid_argument unless lengths, indices and values fit together.
  void check() const;
};

}  // namespace autoshard
