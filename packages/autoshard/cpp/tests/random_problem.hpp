// Random small problems, and their optimum by trying every choice.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "autoshard/problem.hpp"

namespace autoshard_test {

struct RandomProblem {
  std::vector<std::int64_t> n_strategies, intervals, edges, starts;
  std::vector<double> costs, usages, tables;
  double limit;

  explicit RandomProblem(unsigned seed, bool limited) {
    std::mt19937 random(seed);
    const auto draw = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t n = 2 + draw(4);
    for (std::int64_t v = 0; v < n; ++v) {
      n_strategies.push_back(1 + draw(4));
      intervals.push_back(draw(4));
      intervals.push_back(intervals.back() + draw(4));
      for (std::int64_t s = 0; s < n_strategies.back(); ++s) {
        costs.push_back(static_cast<double>(draw(10)));
        usages.push_back(static_cast<double>(draw(10)));
      }
    }
    for (std::int64_t e = draw(8); e > 0; --e) {
      const std::int64_t i = draw(static_cast<unsigned>(n));
      const std::int64_t j = (i + 1 + draw(static_cast<unsigned>(n - 1))) % n;
      edges.push_back(i);
      edges.push_back(j);
      starts.push_back(static_cast<std::int64_t>(tables.size()));
      for (std::int64_t k = n_strategies[static_cast<std::size_t>(i)] *
                            n_strategies[static_cast<std::size_t>(j)];
           k > 0; --k) {
        tables.push_back(draw(4) == 0 ? autoshard::kForbidden : static_cast<double>(draw(10)));
      }
    }
    limit = limited ? static_cast<double>(5 + draw(20)) : autoshard::kForbidden;
  }

  autoshard::Problem problem() const {
    autoshard::Problem p;
    p.n_nodes = n_strategies.size();
    p.n_strategies = n_strategies.data();
    p.costs = costs.data();
    p.usages = usages.data();
    p.intervals = intervals.data();
    p.n_edges = starts.size();
    p.edges = edges.data();
    p.tables = tables.data();
    p.table_starts = starts.data();
    p.n_costs = costs.size();
    p.n_table_entries = tables.size();
    p.limit = limit;
    return p;
  }

  /// The cost of a choice; infinite if it is forbidden or breaks the limit.
  double cost(const std::vector<std::int64_t>& choice) const {
    double total = 0.0;
    std::vector<double> used(8, 0.0);
    std::size_t offset = 0;
    for (std::size_t v = 0; v < choice.size(); ++v) {
      const auto s = offset + static_cast<std::size_t>(choice[v]);
      total += costs[s];
      for (auto t = intervals[2 * v]; t < intervals[2 * v + 1]; ++t) {
        used[static_cast<std::size_t>(t)] += usages[s];
      }
      offset += static_cast<std::size_t>(n_strategies[v]);
    }
    for (std::size_t e = 0; e < starts.size(); ++e) {
      const auto i = static_cast<std::size_t>(edges[2 * e]), j = static_cast<std::size_t>(edges[2 * e + 1]);
      total += tables[static_cast<std::size_t>(starts[e] + choice[i] * n_strategies[j] + choice[j])];
    }
    for (const double u : used) {
      if (u > limit) return autoshard::kForbidden;
    }
    return total;
  }

  double optimum() const {
    std::vector<std::int64_t> choice(n_strategies.size(), 0);
    double best = autoshard::kForbidden;
    while (true) {
      best = std::fmin(best, cost(choice));
      std::size_t v = 0;
      while (v < choice.size() && ++choice[v] == n_strategies[v]) choice[v++] = 0;
      if (v == choice.size()) return best;
    }
  }
};

}  // namespace autoshard_test
