// Exact reduction: drops and merges strategies, nodes and edges without changing the optimum.
//
// All costs stay pairwise. Each rule keeps at least one optimal choice:
//  - a strategy that all strategies of some neighbour forbid is dropped (arc consistency);
//  - edges over the same pair are added up; an edge whose table is a sum a[s] + b[t] becomes node
//    costs;
//  - a node whose strategy follows from a neighbour's is merged into the neighbour, including its
//    memory (it follows if each of the neighbour's strategies allows only one, or has one that is
//    both the cheapest and the one that uses least);
//  - a strategy is dropped if another one never costs more, whatever the neighbours do, and never
//    uses more memory;
//  - a node with at most two neighbours, whose memory does not matter, is minimised over.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "autoshard/memory.hpp"
#include "autoshard/problem.hpp"

namespace autoshard {

using Node = std::int32_t;
using Label = std::int32_t;

/// A reduced problem, with all that is needed to expand its choices to the original nodes.
struct Reduced {
  struct Edge {
    Node i, j;
    std::vector<double> table;  // row-major: a row for each strategy of i
  };
  /// How a removed node chooses, given the strategies of `others`: `best` over their kept ones.
  struct Step {
    Node node;
    std::vector<Label> kept;
    std::vector<Node> others;  // none, one or two
    std::vector<std::vector<Label>> others_kept;
    std::vector<Label> best;  // positions in `kept`
  };

  std::vector<Node> nodes;                // the original number of each remaining node
  std::vector<std::vector<Label>> kept;   // its strategies as original numbers, increasing
  std::vector<std::vector<double>> costs;
  std::vector<Pieces> pieces;
  std::vector<Edge> edges;                // between positions in `nodes`, each pair once, i < j
  Memory memory;
  double constant = 0.0;
  bool possible = true;  // false if forbidden strategies and pairs leave no choice at all
  std::vector<Step> trail;
  std::size_t n_original = 0;

  /// The choice of every original node, given the labels of the remaining nodes.
  std::vector<std::int64_t> expand(const std::vector<Label>& labels) const;
  /// The labels of the remaining nodes in a choice of all original nodes; -1 where dropped.
  std::vector<Label> locate(const std::vector<std::int64_t>& choice) const;
};

/// Called now and then by functions that may take long; may throw to end them.
using Poll = std::function<void()>;

/// Reduces a checked problem, in time about linear in the size of its tables.
Reduced reduce(const Problem& problem, const Poll& poll);

/// A checked problem without any reduction, except that repeated edges are added up.
Reduced as_it_is(const Problem& problem);

/// Reduces further without the labels marked in `dropped` (one flag for each label, node by node).
Reduced reduce(Reduced reduced, const std::vector<char>& dropped, const Poll& poll);

}  // namespace autoshard
