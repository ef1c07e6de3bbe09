// A reduced problem in flat arrays with finite costs only, on which bounds and searches run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autoshard/reduce.hpp"

namespace autoshard {

using Labels = std::vector<Label>;
using Reals = std::vector<double>;

/// One end of an edge, as its node sees it.
struct Arc {
  Node to;
  std::size_t table;    // offset in `tables` of a table with a row for each label of this node
  std::size_t message;  // offset of the messages that arrive along this arc
  std::size_t reverse;  // the arc from the other end
};

/// The usage of a node over the rows [first, last).
struct Span {
  std::int32_t first, last;
  std::size_t usage;  // offset in `usages`, by label
};

struct Model {
  explicit Model(const Reduced& reduced);

  std::size_t n = 0, rows = 0, n_messages = 0;
  std::vector<std::size_t> label;     // label[v]: offset of node v's labels; n + 1 entries
  Reals costs;
  std::vector<std::size_t> arc;       // arc[v]: offset of node v's arcs; n + 1 entries
  std::vector<Arc> arcs;
  Reals tables;                       // of every edge in both orientations
  std::vector<std::size_t> span;      // span[v]: offset of node v's spans; n + 1 entries
  std::vector<Span> spans;
  Reals usages;
  Reals fixed;                        // the fixed usage of each row
  double limit = kForbidden;
  double constant = 0.0;
  /// The cost that represents infinity: a choice with one such cost is dearer than any without.
  double forbidden = 0.0;

  std::size_t width(std::size_t v) const { return label[v + 1] - label[v]; }
  /// Node and edge costs of a choice, without `constant`.
  double cost(const Labels& x) const;
  /// The usage of a choice in every row.
  void use(const Labels& x, Reals& used) const;
  /// The costs of all labels plus their usages at a price for each row.
  void price(const Reals& prices, Reals& theta) const;
  /// Adds `sign` times the usage of some nodes to `used`.
  void add_use(const std::vector<Node>& nodes, const Labels& x, double sign, Reals& used) const;
};

}  // namespace autoshard
