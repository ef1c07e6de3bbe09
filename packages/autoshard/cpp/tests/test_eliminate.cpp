#include "autoshard/eliminate.hpp"

#include "check.hpp"
#include "random_problem.hpp"

#include <numeric>

using namespace autoshard;

// A run in which nodes are held never makes a choice worse; a run without finds the optimum.
int main() {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const autoshard_test::RandomProblem drawn(seed, false);
    if (!std::isfinite(drawn.optimum())) continue;
    const Reduced as_is = as_it_is(drawn.problem());
    const Model model(as_is);
    std::vector<Node> all(model.n);
    std::iota(all.begin(), all.end(), 0);
    Eliminator eliminator(model);
    Random random(seed);
    Labels labels(model.n, 0);
    double before = model.cost(labels);
    for (int round = 0; round < 5; ++round) {
      eliminator.run(model.costs.data(), all, 4, -1, random, labels);
      const double after = model.cost(labels);
      CHECK(after <= before);
      before = after;
    }
    CHECK(eliminator.run(model.costs.data(), all, 1e6, -1, random, labels) == 0);
    CHECK(model.cost(labels) == drawn.optimum());
    std::vector<Labels> choices;
    CHECK(eliminator.decide(model.costs.data(), 0, 1e6, choices));
    double best = kForbidden;
    for (const auto& choice : choices) best = std::fmin(best, model.cost(choice));
    CHECK(best == drawn.optimum());
  }
}
