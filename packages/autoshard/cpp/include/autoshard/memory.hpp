// Memory as few rows: only times at which the set of live nodes is maximal, and can break the limit.
#pragma once

#include <cstdint>
#include <vector>

#include "autoshard/problem.hpp"

namespace autoshard {

/// What a node uses over the rows [first, last), by strategy.
struct Piece {
  std::int32_t first = 0, last = 0;
  std::vector<double> usage;
};

/// The pieces of one node. They add up where they overlap.
using Pieces = std::vector<Piece>;

/// Make pieces disjoint and put them in order.
void join(Pieces& pieces);

/// Rows and what all nodes use over them.
struct Memory {
  // What is used whatever is chosen: the change from the row before, in each row and behind the last.
  std::vector<double> change;
  std::vector<std::int32_t> times;  // which of the original rows each row is, increasing
  double limit = kForbidden;

  std::size_t rows() const { return change.size() - 1; }
  std::vector<double> fixed() const;  // per row

  /// Per node its pieces, over rows at the times when the live set is maximal.
  /// A live set can only be maximal at a start that is followed by an end before the next start.
  static Memory of(const Problem& problem, std::vector<Pieces>& pieces);

  /// Move what a node uses under every strategy to `change`; drop pieces that then are empty.
  void normalise(Pieces& pieces);

  /// Drop rows that cannot break the limit, and join neighbours between which nothing changes.
  /// Pieces must be normal. Returns whether any row was dropped.
  bool drop_rows(std::vector<Pieces>& pieces);
};

}  // namespace autoshard
