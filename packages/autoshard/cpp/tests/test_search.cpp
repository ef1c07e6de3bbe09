#include "autoshard/search.hpp"

#include "autoshard/dual.hpp"
#include "check.hpp"
#include "random_problem.hpp"

using namespace autoshard;

// Bounds are at most the optimum; choices keep the limit and cost at least the optimum.
int main() {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const autoshard_test::RandomProblem drawn(seed, true);
    const double optimum = drawn.optimum();
    const Reduced reduced = reduce(drawn.problem(), [] {});
    if (!reduced.possible || reduced.nodes.empty()) continue;
    const Model model(reduced);
    Dual dual(model);
    for (int i = 0; i < 30; ++i) dual.step(100.0);
    CHECK(dual.bound() + model.constant <= optimum + 1e-9);
    Search search(model, seed);
    search.start(dual.choice(), dual.prices());
    for (int i = 0; i < 20; ++i) search.sweep();
    if (!search.feasible()) continue;
    search.improve(1e4);
    const double found = drawn.cost(reduced.expand(search.best()));
    CHECK(found == search.best_cost() + model.constant);
    CHECK(found >= optimum);
  }
}
