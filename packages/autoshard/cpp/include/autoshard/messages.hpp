// Lower bounds by sequential tree-reweighted message passing, with prices for the memory rows.
//
// Messages move cost between nodes and edges without changing what any choice costs; the sum of the
// minima over monotonic chains is then a bound, and each sweep raises it. Kolmogorov, "Convergent
// tree-reweighted message passing for energy minimization", PAMI 28(10), 2006. At prices p >= 0 of
// the rows, bound(costs + p usage) - p limit bounds the problem with its limit (Lagrange).
#pragma once

#include "autoshard/model.hpp"

namespace autoshard {

class Messages {
 public:
  explicit Messages(const Model& model);

  /// Costs that sweeps work on; may be changed between sweeps.
  Reals theta;

  /// A sweep forward and one back; returns a bound on the cost by `theta`.
  double sweep();
  /// A node's labels' beliefs: its costs and all that its neighbours' messages say.
  void belief(std::size_t v, double* out) const;
  /// Choose node after node, by the choices before and the messages from behind.
  void decode(Labels& x) const;
  /// Costs of a node's labels given the labels of neighbours where known (>= 0), else by messages.
  void belief_given(std::size_t v, const Labels& x, double* out) const;
  /// In the next forward sweep, mark labels whose choice would cost more than `most`.
  void find_dear(double most, std::vector<char>& dear);

 private:
  template <bool forward>
  double pass(double most, std::vector<char>* dear);

  const Model& model_;
  Reals messages_, buffer_, weights_;
  Reals share_;  // per node: 1 / the number of chains through it
};

}  // namespace autoshard
