#include "autoshard/reduce.hpp"

#include "autoshard/eliminate.hpp"
#include "check.hpp"
#include "random_problem.hpp"

#include <numeric>

using namespace autoshard;

// Without a limit, reduction and elimination give the optimum.
int main() {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const autoshard_test::RandomProblem drawn(seed, false);
    const Problem problem = drawn.problem();
    problem.check();
    const double optimum = drawn.optimum();
    const Reduced reduced = reduce(problem, [] {});
    CHECK(reduced.possible == std::isfinite(optimum));
    if (!reduced.possible) continue;
    const Model model(reduced);
    Labels labels(model.n, 0);
    std::vector<Node> all(model.n);
    std::iota(all.begin(), all.end(), 0);
    Random random(seed);
    CHECK(Eliminator(model).run(model.costs.data(), all, 1e6, -1, random, labels) == 0);
    CHECK(drawn.cost(reduced.expand(labels)) == optimum);
  }
}
