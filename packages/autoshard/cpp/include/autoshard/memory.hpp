// Memory as few rows: only times whose set of live nodes is maximal and can break the limit.
#pragma once

#include <cstdint>
#include <vector>

#include "autoshard/problem.hpp"

namespace autoshard {

/// The usage of a node over the rows [first, last), for each strategy.
struct Piece {
  std::int32_t first = 0, last = 0;
  std::vector<double> usage;
};

/// The pieces of one node; where pieces overlap, their usages are added.
using Pieces = std::vector<Piece>;

/// Makes pieces disjoint and puts them in order.
void join(Pieces& pieces);

/// The rows, and the usage that does not depend on any choice.
struct Memory {
  // The fixed usage, as the change from the row before: an entry for each row and one at the end.
  std::vector<double> change;
  std::vector<std::int32_t> times;  // which of the original rows each row is, increasing
  double limit = kForbidden;

  std::size_t rows() const { return change.size() - 1; }
  std::vector<double> fixed() const;  // the fixed usage of each row

  /// The memory of a problem; sets the pieces of each node, over rows whose live set is maximal.
  /// A live set can only be maximal at a start that is followed by an end before the next start.
  static Memory of(const Problem& problem, std::vector<Pieces>& pieces);

  /// Moves what a node uses in every strategy to `change`, and drops pieces that are empty then.
  void normalise(Pieces& pieces);

  /// Drops rows that cannot break the limit, and joins neighbours between which nothing changes.
  /// Pieces must be normalised. Returns whether any row was dropped.
  bool drop_rows(std::vector<Pieces>& pieces);
};

}  // namespace autoshard
