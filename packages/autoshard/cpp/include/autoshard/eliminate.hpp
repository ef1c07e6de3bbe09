// The exact optimum over as many nodes as tables of a given size allow, while the others are held.
//
// Bucket elimination (Dechter 1999): a node is minimised over by joining the tables that mention it
// into one table over its neighbours, narrowest node first. If that table would be too wide, one of
// the nodes concerned is held at its present label instead (cutset conditioning). The nodes that
// are not held form a subgraph of bounded treewidth, and the result is the best of all choices that
// differ from the present one on this subgraph.
// Selby, "Efficient subgraph-based sampling of Ising-type models with frustration", 2014.
#pragma once

#include <cstdint>
#include <random>

#include "autoshard/model.hpp"

namespace autoshard {

using Random = std::mt19937_64;

/// Uniform in [0, 1); the same on every machine, unlike the distributions of std.
inline double uniform(Random& random) {
  return static_cast<double>(random() >> 11) * 0x1.0p-53;
}

class Eliminator {
 public:
  explicit Eliminator(const Model& model);

  /// Minimises `theta` and edge costs over the labels of `free` nodes; the others stay as in `x`.
  ///
  /// Args: `entries` bounds every table; `keep` (a node, or -1) is held only if nothing else can be.
  /// `exact`: give up, and leave `x` unchanged, as soon as a node would have to be held.
  /// Returns how many of the free nodes were held at their label in `x` (0: `x` is the optimum).
  std::size_t run(const double* theta, const std::vector<Node>& free, double entries, Node keep,
                  Random& random, Labels& x, bool exact = false);
  /// Finds the best choice of all nodes for each label of `root`; false if tables would be too big.
  bool decide(const double* theta, Node root, double entries, std::vector<Labels>& choices);
  /// The number of additions in the last run.
  double work() const { return work_; }

 private:
  struct Factor {
    std::vector<int> scope;   // local nodes
    const double* data;       // row-major in the scope's order
    const double* flipped;    // the transposed table of a pair, or null
  };
  void load(const double* theta, const std::vector<Node>& free, const Labels& x);
  double* allocate(std::size_t size);
  void push(int v);
  bool next(int& v);
  void trace_back(const std::vector<int>& order, Labels& x) const;
  void disconnect(int v);
  void hold(int v, std::size_t label);
  void eliminate(int v);
  /// Removes a node and makes its neighbours neighbours of each other, without computing tables.
  void join_neighbours(int v);
  /// Whether eliminating all loaded nodes needs no wider table; then they must be loaded again.
  bool is_narrow(double widest);
  const double* with_last(Factor& factor, int last);
  std::size_t choose(int v, const Labels& x) const;

  const Model& model_;
  // Of the free nodes, by their position in `nodes_`:
  std::vector<Node> nodes_;
  std::vector<int> local_;  // the position of each node of the model, -1 where it is not free
  std::vector<double> log_size_;                   // of the node's tables when they are joined
  std::vector<Reals> unary_;
  std::vector<std::vector<int>> around_;           // sorted
  std::vector<std::vector<std::size_t>> factors_of_;
  std::vector<Factor> factors_;
  std::vector<char> done_;
  std::vector<std::uint32_t> version_;
  std::vector<std::pair<double, std::pair<int, std::uint32_t>>> heap_;
  // The memory of tables, which is reused from run to run:
  std::vector<std::vector<double>> blocks_;
  std::size_t block_ = 0, used_ = 0, allocated_ = 0;
  double work_ = 0.0;
};

}  // namespace autoshard
