// Exact reduction: what cannot matter goes, and the optimum stays.
//
// Works on pairs of nodes only. Each rule keeps at least one optimal choice:
//  - a strategy that every choice of some neighbour forbids is dropped (arc consistency);
//  - edges over the same pair are added up; one that is a sum a[s] + b[t] becomes node costs;
//  - a node whose strategy follows from a neighbour's (each of the neighbour's strategies allows one,
//    or one that is the best and uses least) is merged into it, memory and all;
//  - a strategy goes if another never costs more, whatever the neighbours do, nor uses more memory;
//  - a node without memory that matters, and with at most two neighbours, is minimised over.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "autoshard/memory.hpp"
#include "autoshard/problem.hpp"

namespace autoshard {

using Node = std::int32_t;
using Label = std::int32_t;

/// A problem reduced to pairs, with the way back.
struct Reduced {
  struct Edge {
    Node i, j;
    std::vector<double> table;  // row-major: a row for each strategy of i
  };
  /// How a node that is gone chooses once `others` have: `best` over their kept strategies.
  struct Step {
    Node node;
    std::vector<Label> kept;
    std::vector<Node> others;  // none, one or two
    std::vector<std::vector<Label>> others_kept;
    std::vector<Label> best;  // positions in `kept`
  };

  std::vector<Node> nodes;                // original number of each node left
  std::vector<std::vector<Label>> kept;   // its strategies: original numbers, increasing
  std::vector<std::vector<double>> costs;
  std::vector<Pieces> pieces;
  std::vector<Edge> edges;                // between positions in `nodes`, each pair once, i < j
  Memory memory;
  double constant = 0.0;
  bool possible = true;  // false: forbidden strategies and pairs leave no choice at all
  std::vector<Step> trail;
  std::size_t n_original = 0;

  /// The choice of every original node that follows from labels of the nodes left.
  std::vector<std::int64_t> expand(const std::vector<Label>& labels) const;
  /// The labels of the nodes left that a choice of every original node has; -1 where dropped.
  std::vector<Label> locate(const std::vector<std::int64_t>& choice) const;
};

/// Called now and then by what may take long; ends it by throwing.
using Poll = std::function<void()>;

/// Reduce a checked problem. Takes time about linear in its tables.
Reduced reduce(const Problem& problem, const Poll& poll);

/// A checked problem as it is, but for repeated edges, which are added up.
Reduced as_it_is(const Problem& problem);

/// Go on without the labels marked in `dropped` (of all nodes left, one after the other).
Reduced reduce(Reduced reduced, const std::vector<char>& dropped, const Poll& poll);

}  // namespace autoshard
