// Local search whose moves are exact optima over large parts of the nodes, within the memory limit.
//
// Memory is priced: a move minimises cost plus prices times usage. While no choice that keeps the
// limit is known, every move covers all nodes, and the prices follow the usage (`sweep`). From then
// on, a move covers a connected patch; it is accepted if it costs no more and keeps the limit. If
// the optimum of a patch breaks the limit, the worst row gets a price at which this optimum is no
// better than the present choice, and the patch is minimised again: Kelley's cutting plane for one
// row.
#pragma once

#include <vector>

#include "autoshard/eliminate.hpp"

namespace autoshard {

class Search {
 public:
  Search(const Model& model, std::uint64_t seed);

  /// Begins at a choice, with prices of the rows.
  void start(const Labels& x, const Reals& prices);
  /// Goes on with other prices.
  void aim(const Reals& prices);
  /// Moves all nodes at the present prices, keeps the result if it is the best, adapts the prices.
  void sweep();
  /// Moves patches until `work` additions are spent.
  void improve(double work);

  const Model& model() const { return model_; }
  bool feasible() const { return best_cost_ < kForbidden; }
  double best_cost() const { return best_cost_; }  // without the model's constant
  const Labels& best() const { return best_; }
  const Labels& present() const { return x_; }
  double cost() const { return cost_; }
  double peak() const { return peak_; }
  const Reals& prices() const { return prices_; }

 private:
  void patch();
  void grow(std::size_t size);
  void price_part();
  double part_cost(const double* theta, const Labels& x) const;
  void refresh();
  void offer();
  void descend();
  void adapt();
  std::size_t pick(std::size_t n);

  const Model& model_;
  Eliminator eliminator_;
  Random random_;
  Reals prices_, patch_prices_, theta_, used_, trial_used_;
  Reals rate_;                  // for each row: how fast its price changes
  std::vector<char> was_over_;  // for each row: whether it was above the limit at the last change
  Labels x_, trial_, best_;
  std::vector<Node> part_, all_;
  std::vector<char> in_part_;
  double cost_ = 0.0, peak_ = 0.0, best_cost_ = kForbidden, spent_ = 0.0;
};

}  // namespace autoshard
