// Prices for memory: the best lower bound that message passing gives at any prices of the rows.
#pragma once

#include <vector>

#include "autoshard/messages.hpp"

namespace autoshard {

/// Ascends in messages and prices together, by subgradients: what a choice decoded from the messages
/// uses above the limit says where prices rise.
class Dual {
 public:
  explicit Dual(const Model& model);

  /// Some sweeps at the present prices, a choice by them, and new prices.
  ///
  /// `target` is what some feasible choice costs, without the constant (for Polyak's step).
  void step(double target);
  /// Go on from other prices if they bound better than what is best; else forget them.
  void try_prices(const Reals& prices);
  /// Marks labels every choice of which costs more than `objective` (without the constant).
  std::vector<char> dear(double objective);

  const Model& model() const { return model_; }
  double bound() const { return best_; }  // without the model's constant
  const Reals& prices() const { return best_prices_; }
  const Labels& choice() const { return choice_; }  // of the last step
  double peak() const { return peak_; }             // of the last step's choice
  /// Whether steps have become so short that little more is to be expected.
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
