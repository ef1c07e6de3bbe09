#include "autoshard/dual.hpp"

#include <algorithm>
#include <cmath>

namespace autoshard {

namespace {

// [measured on the IOPDDL instances A to S]
constexpr int kSweeps = 4;            // sweeps of messages between two changes of the prices
constexpr double kFirstScale = 0.3;   // the first scale of Polyak's step
constexpr double kShrink = 0.7;       // the scale is multiplied by this
constexpr int kIdle = 25;             // after so many steps without a better bound
constexpr double kMomentum = 0.7;     // the weight of the last direction in the next one
constexpr std::size_t kStretches = 300;  // stretches of rows; the worst row of each gets a price
constexpr int kTrialSweeps = 40;      // sweeps before other prices are judged

}  // namespace

Dual::Dual(const Model& model)
    : model_(model),
      messages_(model),
      prices_(model.rows, 0.0),
      best_prices_(model.rows, 0.0),
      momentum_(model.rows, 0.0),
      is_priced_(model.rows, 0),
      scale_(kFirstScale) {}

void Dual::aim(const Reals& prices) {
  prices_ = prices;
  std::fill(momentum_.begin(), momentum_.end(), 0.0);
  for (std::size_t row = 0; row < model_.rows; ++row) {
    if (prices_[row] > 0.0 && !is_priced_[row]) {
      is_priced_[row] = 1;
      priced_.push_back(row);
    }
  }
  model_.price(prices_, messages_.theta);
}

double Dual::evaluate(int sweeps) {
  double bound = -kForbidden;
  for (int i = 0; i < sweeps; ++i) bound = messages_.sweep();
  double spent = 0.0, size = std::abs(bound);
  for (std::size_t row = 0; row < model_.rows; ++row) {
    const double worth = prices_[row] * (model_.limit - model_.fixed[row]);
    spent += worth;
    size += std::abs(worth);
  }
  // the margin keeps rounding of the sums from making the bound too high
  return bound - spent - 1e-11 * size;
}

void Dual::try_prices(const Reals& prices) {
  aim(prices);
  const double bound = evaluate(kTrialSweeps);
  if (bound > best_) {
    best_ = bound;
    best_prices_ = prices;
    idle_ = 0;
  } else {
    aim(best_prices_);
  }
}

std::vector<char> Dual::dear(double objective) {
  aim(best_prices_);
  const double bound = evaluate(kTrialSweeps);
  std::vector<char> flags;
  // with a margin for rounding
  messages_.find_dear(objective - bound + 1e-9 * std::abs(objective), flags);
  return flags;
}

void Dual::step(double target) {
  const double bound = evaluate(kSweeps);
  messages_.decode(choice_);
  model_.use(choice_, used_);
  peak_ = model_.rows == 0 ? 0.0 : *std::max_element(used_.begin(), used_.end());
  if (bound > best_) {
    best_ = bound;
    best_prices_ = prices_;
    idle_ = 0;
  } else if (++idle_ > kIdle) {
    idle_ = 0;
    scale_ *= kShrink;
    aim(best_prices_);
    return;
  }
  // A price on the worst row of each stretch is enough, since neighbouring rows hardly differ.
  const std::size_t stretch = model_.rows / kStretches + 1;
  for (std::size_t row = 0; row < model_.rows; row += stretch) {
    const auto end = std::min(row + stretch, model_.rows);
    const auto worst = static_cast<std::size_t>(
        std::max_element(used_.begin() + static_cast<std::ptrdiff_t>(row),
                         used_.begin() + static_cast<std::ptrdiff_t>(end)) -
        used_.begin());
    if (used_[worst] > model_.limit && !is_priced_[worst]) {
      is_priced_[worst] = 1;
      priced_.push_back(worst);
    }
  }
  const double unit = std::max(model_.limit, 1.0);
  double norm = 0.0;
  for (const std::size_t row : priced_) {
    auto& m = momentum_[row];
    m = kMomentum * m + (1.0 - kMomentum) * (used_[row] - model_.limit) / unit;
    if (prices_[row] > 0.0 || m > 0.0) norm += m * m;
  }
  if (norm <= 0.0) return;
  const double aim_for = std::max(target - bound, 0.002 * std::abs(target));
  const double length = scale_ * aim_for / norm / unit;
  for (const std::size_t row : priced_) {
    prices_[row] = std::max(0.0, prices_[row] + length * momentum_[row]);
  }
  model_.price(prices_, messages_.theta);
}

}  // namespace autoshard
