#include "autoshard/search.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace autoshard {

namespace {

// [measured on the IOPDDL instances A to S]: a few times more or less makes little difference.
constexpr double kSweepEntries = 1e4;  // the most entries of a table in a sweep
constexpr double kLeastNodes = 4, kMostNodes = 1500;          // nodes of a patch
constexpr double kLeastEntries = 1e3, kMostEntries = 1e5;     // bounds of a table in a patch
constexpr int kRounds = 6;             // rounds of prices for a patch
constexpr double kFirstRate = 0.02;    // how fast a price changes at first
constexpr std::size_t kStretches = 300;  // stretches of rows; the worst row of each gets a price

std::size_t at(Node v) { return static_cast<std::size_t>(v); }

}  // namespace

Search::Search(const Model& model, std::uint64_t seed)
    : model_(model),
      eliminator_(model),
      random_(seed),
      prices_(model.rows, 0.0),
      theta_(model.costs),
      all_(model.n),
      in_part_(model.n, 0) {
  std::iota(all_.begin(), all_.end(), 0);
}

void Search::start(const Labels& x, const Reals& prices) {
  x_ = x;
  refresh();
  aim(prices);
  offer();
}

void Search::aim(const Reals& prices) {
  prices_ = prices;
  rate_.assign(model_.rows, kFirstRate);
  was_over_.assign(model_.rows, 1);
}

void Search::refresh() {
  cost_ = model_.cost(x_);
  model_.use(x_, used_);
  peak_ = model_.rows == 0 ? 0.0 : *std::max_element(used_.begin(), used_.end());
}

void Search::offer() {
  const bool allowed = cost_ < 0.5 * model_.forbidden;
  if (peak_ > model_.limit || !allowed || cost_ >= best_cost_) return;
  best_cost_ = cost_;
  best_ = x_;
}

void Search::sweep() {
  model_.price(prices_, theta_);
  eliminator_.run(theta_.data(), all_, kSweepEntries, -1, random_, x_);
  refresh();
  if (peak_ <= model_.limit) {
    Labels priced = x_;
    descend();
    offer();
    x_ = std::move(priced);
    refresh();
  }
  adapt();
}

/// Raises the prices of rows that break the limit and lowers the others. Each price has its own
/// rate, which grows while the price moves one way and shrinks when it turns (as in Rprop:
/// Riedmiller, Braun 1993).
void Search::adapt() {
  double total = 0.0;
  for (const double price : prices_) total += price;
  if (total <= 0.0) total = 0.1 * std::abs(cost_) / model_.limit;
  const std::size_t stretch = model_.rows / kStretches + 1;
  for (std::size_t row = 0; row < model_.rows; row += stretch) {
    const auto end = std::min(row + stretch, model_.rows);
    const auto worst = static_cast<std::size_t>(
        std::max_element(used_.begin() + static_cast<std::ptrdiff_t>(row),
                         used_.begin() + static_cast<std::ptrdiff_t>(end)) -
        used_.begin());
    if (used_[worst] > model_.limit && prices_[worst] <= 1e-4 * total) {
      prices_[worst] += 0.01 * total;
      rate_[worst] = kFirstRate;
      was_over_[worst] = 1;
    }
  }
  for (std::size_t row = 0; row < model_.rows; ++row) {
    if (prices_[row] <= 0.0) continue;
    const bool over = used_[row] > model_.limit;
    rate_[row] = over == (was_over_[row] != 0) ? std::min(rate_[row] * 1.2, 0.3)
                                               : std::max(rate_[row] * 0.5, 1e-5);
    was_over_[row] = over;
    // while no choice keeps the limit, prices only rise, so that at last only memory counts
    if (!over && !feasible()) continue;
    prices_[row] *= over ? 1.0 + rate_[row] : 1.0 / (1.0 + rate_[row]);
  }
}

/// Changes one node at a time to a strategy that is cheaper and keeps the limit.
void Search::descend() {
  Reals local;
  for (std::size_t n = model_.n; n > 1; --n) std::swap(all_[n - 1], all_[pick(n)]);
  std::vector<std::size_t> cheaper;
  for (const Node node : all_) {
    const std::size_t v = at(node), k = model_.width(v), now = at(x_[v]);
    local.assign(model_.costs.begin() + static_cast<std::ptrdiff_t>(model_.label[v]),
                 model_.costs.begin() + static_cast<std::ptrdiff_t>(model_.label[v + 1]));
    for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
      const Arc& arc = model_.arcs[a];
      const double* row = model_.tables.data() + model_.arcs[arc.reverse].table + at(x_[at(arc.to)]) * k;
      for (std::size_t s = 0; s < k; ++s) local[s] += row[s];
    }
    cheaper.clear();
    for (std::size_t s = 0; s < k; ++s) {
      if (local[s] < local[now]) cheaper.push_back(s);
    }
    std::sort(cheaper.begin(), cheaper.end(), [&](std::size_t a, std::size_t b) { return local[a] < local[b]; });
    for (const std::size_t s : cheaper) {
      bool fits = true;
      for (std::size_t i = model_.span[v]; i < model_.span[v + 1] && fits; ++i) {
        const Span& span = model_.spans[i];
        const double more = model_.usages[span.usage + s] - model_.usages[span.usage + now];
        if (more <= 0.0) continue;
        for (auto row = span.first; row < span.last && fits; ++row) {
          fits = used_[at(row)] + more <= model_.limit;
        }
      }
      if (!fits) continue;
      const std::vector<Node> one{node};
      model_.add_use(one, x_, -1.0, used_);
      x_[v] = static_cast<Label>(s);
      model_.add_use(one, x_, 1.0, used_);
      break;
    }
  }
  refresh();
}

std::size_t Search::pick(std::size_t n) {
  return static_cast<std::size_t>(uniform(random_) * static_cast<double>(n));
}

void Search::grow(std::size_t size) {
  for (const Node v : part_) in_part_[at(v)] = 0;
  part_.clear();
  std::vector<Node> frontier;
  const auto add = [&](Node v) {
    in_part_[at(v)] = 1;
    part_.push_back(v);
    frontier.push_back(v);
  };
  add(static_cast<Node>(pick(model_.n)));
  std::size_t head = 0;
  while (part_.size() < size && head < frontier.size()) {
    if (uniform(random_) < 0.3) std::swap(frontier[head], frontier[head + pick(frontier.size() - head)]);
    const Node v = frontier[head++];
    for (std::size_t a = model_.arc[at(v)]; a < model_.arc[at(v) + 1] && part_.size() < size; ++a) {
      const Node w = model_.arcs[a].to;
      if (!in_part_[at(w)]) add(w);
    }
  }
}

void Search::price_part() {
  Reals before(model_.rows + 1, 0.0);
  for (std::size_t row = 0; row < model_.rows; ++row) before[row + 1] = before[row] + patch_prices_[row];
  for (const Node node : part_) {
    const std::size_t v = at(node), k = model_.width(v);
    double* theta = theta_.data() + model_.label[v];
    std::copy_n(model_.costs.begin() + static_cast<std::ptrdiff_t>(model_.label[v]), k, theta);
    for (std::size_t i = model_.span[v]; i < model_.span[v + 1]; ++i) {
      const Span& span = model_.spans[i];
      const double price = before[at(span.last)] - before[at(span.first)];
      if (price <= 0.0) continue;
      for (std::size_t s = 0; s < k; ++s) theta[s] += price * model_.usages[span.usage + s];
    }
  }
}

double Search::part_cost(const double* theta, const Labels& x) const {
  double total = 0.0;
  for (const Node node : part_) {
    const std::size_t v = at(node);
    total += theta[model_.label[v] + at(x[v])];
    for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
      const Arc& arc = model_.arcs[a];
      if (in_part_[at(arc.to)] && arc.to < node) continue;
      total += model_.tables[arc.table + at(x[v]) * model_.width(at(arc.to)) + at(x[at(arc.to)])];
    }
  }
  return total;
}

void Search::improve(double work) {
  for (spent_ = 0.0; spent_ < work && model_.n > 0;) patch();
}

void Search::patch() {
  const auto between = [&](double least, double most) {
    return least * std::pow(most / least, uniform(random_));
  };
  grow(static_cast<std::size_t>(between(kLeastNodes, kMostNodes)));
  const double entries = between(kLeastEntries, kMostEntries);
  // memory may be priced lower or higher in a patch than in the whole
  const double scale = uniform(random_) < 0.3 ? 0.0 : 1.5 * uniform(random_);
  patch_prices_ = prices_;
  for (double& price : patch_prices_) price *= scale;
  const double now = part_cost(model_.costs.data(), x_);
  for (int round = 0; round < kRounds; ++round) {
    price_part();
    trial_ = x_;
    eliminator_.run(theta_.data(), part_, entries, part_[0], random_, trial_);
    spent_ += eliminator_.work() + static_cast<double>(model_.n + model_.rows);
    if (trial_ == x_) return;
    trial_used_ = used_;
    model_.add_use(part_, x_, -1.0, trial_used_);
    model_.add_use(part_, trial_, 1.0, trial_used_);
    std::size_t worst = 0;
    double over = 0.0;
    for (std::size_t row = 0; row < model_.rows; ++row) {
      const double excess = trial_used_[row] - model_.limit;
      if (excess > over) over = excess, worst = row;
    }
    if (over <= 0.0) {
      const double then = part_cost(model_.costs.data(), trial_);
      if (then > now) return;
      std::swap(x_, trial_);
      refresh();
      offer();
      return;
    }
    const double gain = part_cost(theta_.data(), x_) - part_cost(theta_.data(), trial_);
    patch_prices_[worst] +=
        (1.0 + 1e-4) * std::max(gain, 0.0) / (trial_used_[worst] - used_[worst]);
  }
}

}  // namespace autoshard
