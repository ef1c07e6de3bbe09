// Local search whose move is the exact optimum over a large part of the nodes, within memory.
//
// Memory is priced: a move minimises cost plus prices times usage. While no choice that keeps the
// limit is known, every move takes all nodes, and the prices follow what is used (`sweep`). From then
// on a move takes a connected patch; it is accepted if it is cheaper and keeps the limit. Where the
// best of a patch breaks the limit, a price on the worst row makes it no better than the present
// choice, and the patch is minimised again: the cutting plane of Kelley for one row.
#pragma once

#include <vector>

#include "autoshard/eliminate.hpp"

namespace autoshard {

class Search {
 public:
  Search(const Model& model, std::uint64_t seed);

  /// Begin at a choice, with prices of the rows.
  void start(const Labels& x, const Reals& prices);
  /// Go on with other prices.
  void aim(const Reals& prices);
  /// Move all nodes at the present prices, hold the result against the best, adapt the prices.
  void sweep();
  /// Move patches until `work` additions are spent.
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
  Reals rate_;                  // per row: how fast its price changes
  std::vector<char> was_over_;  // per row: whether it broke the limit when its price last changed
  Labels x_, trial_, best_;
  std::vector<Node> part_, all_;
  std::vector<char> in_part_;
  double cost_ = 0.0, peak_ = 0.0, best_cost_ = kForbidden, spent_ = 0.0;
};

}  // namespace autoshard
