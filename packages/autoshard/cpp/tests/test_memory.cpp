#include "autoshard/memory.hpp"

#include "check.hpp"
#include "random_problem.hpp"

#include <algorithm>

using namespace autoshard;

// For every choice, the rows tell whether it keeps the limit, even after joining and dropping.
int main() {
  for (unsigned seed = 0; seed < 300; ++seed) {
    autoshard_test::RandomProblem drawn(seed, true);
    std::fill(drawn.costs.begin(), drawn.costs.end(), 0.0);
    std::fill(drawn.tables.begin(), drawn.tables.end(), 0.0);
    std::vector<Pieces> pieces;
    Memory memory = Memory::of(drawn.problem(), pieces);
    for (auto& of_node : pieces) {
      join(of_node);
      memory.normalise(of_node);
    }
    memory.drop_rows(pieces);
    const auto fixed = memory.fixed();
    std::vector<std::int64_t> choice(pieces.size(), 0);
    for (bool more = true; more;) {
      auto used = fixed;
      for (std::size_t v = 0; v < pieces.size(); ++v) {
        for (const auto& piece : pieces[v]) {
          for (auto row = piece.first; row < piece.last; ++row) {
            used[static_cast<std::size_t>(row)] += piece.usage[static_cast<std::size_t>(choice[v])];
          }
        }
      }
      const bool fits = std::all_of(used.begin(), used.end(),
                                    [&](double usage) { return usage <= memory.limit; });
      CHECK(fits == std::isfinite(drawn.cost(choice)));
      std::size_t v = 0;
      while (v < choice.size() && ++choice[v] == drawn.n_strategies[v]) choice[v++] = 0;
      more = v < choice.size();
    }
  }
}
