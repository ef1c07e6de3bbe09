// Lower bounds under a memory limit: prices of the memory rows, and the bound that message passing
// gives at these prices.
#pragma once

#include <vector>

#include "autoshard/messages.hpp"

namespace autoshard {

/// Ascends in messages and prices together, by subgradients: prices rise in the rows where a choice
/// decoded from the messages exceeds the limit.
class Dual {
 public:
  explicit Dual(const Model& model);

  /// Does some sweeps at the present prices, decodes a choice, and updates the prices.
  ///
  /// `target` is the cost of some feasible choice, without the constant (for Polyak's step).
  void step(double target);
  /// Goes on from other prices if their bound is better than the best one; else forgets them.
  void try_prices(const Reals& prices);
  /// Marks each label whose every choice costs more than `objective` (without the constant).
  std::vector<char> dear(double objective);

  const Model& model() const { return model_; }
  double bound() const { return best_; }  // without the model's constant
  const Reals& prices() const { return best_prices_; }
  const Labels& choice() const { return choice_; }  // of the last step
  double peak() const { return peak_; }             // of the last step's choice
  /// Whether steps have become so short that the bound will hardly rise any more.
  bool converged() const { return scale_ < kLeastScale; }

 private:
  static constexpr double kLeastScale = 1e-3;
  double evaluate(int sweeps);
  void aim(const Reals& prices);

  const Model& model_;
  Messages messages_;
  Reals prices_, best_prices_, used_, momentum_;
  std::vector<std::size_t> priced_;  // rows that have, or had, a price
  std::vector<char> is_priced_;
  Labels choice_;
  double best_ = -kForbidden, peak_ = 0.0, scale_;
  int idle_ = 0;
};

}  // namespace autoshard
