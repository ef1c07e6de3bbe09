// Lower bounds by sequential tree-reweighted message passing, with prices for the memory rows.
//
// Messages move cost between nodes and edges without changing the cost of any choice. The sum of
// the minima over monotonic chains is then a lower bound, and each sweep raises it. Kolmogorov,
// "Convergent tree-reweighted message passing for energy minimization", PAMI 28(10), 2006. At
// prices p >= 0 of the rows, bound(costs + p usage) - p limit is a lower bound for the problem with
// its limit (Lagrange).
#pragma once

#include "autoshard/model.hpp"

namespace autoshard {

class Messages {
 public:
  explicit Messages(const Model& model);

  /// The node costs that sweeps work on; may be changed between sweeps.
  Reals theta;

  /// Sweeps forward and back; returns a lower bound on the cost by `theta`.
  double sweep();
  /// The belief of each label of a node: its cost plus all messages from the neighbours.
  void belief(std::size_t v, double* out) const;
  /// Chooses node after node, given the choices of earlier nodes and the messages of later ones.
  void decode(Labels& x) const;
  /// Costs of a node's labels, given the labels of neighbours if known (>= 0), else by messages.
  void belief_given(std::size_t v, const Labels& x, double* out) const;
  /// Sweeps forward, and marks labels whose choice would cost more than `most`.
  void find_dear(double most, std::vector<char>& dear);

 private:
  template <bool forward>
  double pass(double most, std::vector<char>* dear);

  const Model& model_;
  Reals messages_, buffer_, weights_;
  Reals share_;  // for each node: 1 / the number of chains through it
};

}  // namespace autoshard
