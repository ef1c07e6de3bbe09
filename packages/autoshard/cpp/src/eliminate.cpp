#include "autoshard/eliminate.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "autoshard/kernels.hpp"

namespace autoshard {

namespace {

constexpr std::size_t kBlock = 1 << 18;       // doubles allocated at a time: 2 MB
constexpr std::size_t kMostMemory = 1 << 26;  // doubles in all tables, 512 MB; then nodes are held
constexpr double kRounding = 1e-9;            // tolerance for sums of logarithms

std::size_t at(int v) { return static_cast<std::size_t>(v); }

}  // namespace

Eliminator::Eliminator(const Model& model) : model_(model), local_(model.n, -1) {}

double* Eliminator::allocate(std::size_t size) {
  while (block_ < blocks_.size() && used_ + size > blocks_[block_].size()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.emplace_back(std::max(size, kBlock));
  used_ += size;
  allocated_ += size;
  return blocks_[block_].data() + (used_ - size);
}

void Eliminator::load(const double* theta, const std::vector<Node>& free, const Labels& x) {
  const std::size_t n = free.size();
  nodes_ = free;
  log_size_.assign(n, 0.0);
  done_.assign(n, 0);
  version_.assign(n, 0);
  if (unary_.size() < n) {
    unary_.resize(n);
    around_.resize(n);
    factors_of_.resize(n);
  }
  factors_.clear();
  heap_.clear();
  block_ = used_ = allocated_ = 0;
  work_ = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    local_[at(free[i])] = static_cast<int>(i);
    around_[i].clear();
    factors_of_[i].clear();
  }
  for (std::size_t i = 0; i < n; ++i) {
    const auto v = at(free[i]);
    const std::size_t k = model_.width(v);
    unary_[i].assign(theta + model_.label[v], theta + model_.label[v + 1]);
    log_size_[i] = std::log(static_cast<double>(k));
    for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
      const Arc& arc = model_.arcs[a];
      const int j = local_[at(arc.to)];
      const double* flipped = model_.tables.data() + model_.arcs[arc.reverse].table;
      if (j < 0) {
        const double* row = flipped + at(x[at(arc.to)]) * k;
        for (std::size_t s = 0; s < k; ++s) unary_[i][s] += row[s];
      } else {
        around_[i].push_back(j);
        log_size_[i] += std::log(static_cast<double>(model_.width(at(arc.to))));
        if (static_cast<int>(i) < j) {
          factors_of_[i].push_back(factors_.size());
          factors_of_[at(j)].push_back(factors_.size());
          factors_.push_back({{static_cast<int>(i), j}, model_.tables.data() + arc.table, flipped});
        }
      }
    }
    std::sort(around_[i].begin(), around_[i].end());
  }
}

void Eliminator::push(int v) {
  heap_.push_back({log_size_[at(v)], {v, ++version_[at(v)]}});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void Eliminator::disconnect(int v) {
  const double log_width = std::log(static_cast<double>(unary_[at(v)].size()));
  for (const int w : around_[at(v)]) {
    auto& list = around_[at(w)];
    list.erase(std::lower_bound(list.begin(), list.end(), v));
    log_size_[at(w)] -= log_width;
  }
  done_[at(v)] = 1;
}

void Eliminator::hold(int v, std::size_t label) {
  for (const std::size_t f : factors_of_[at(v)]) {
    Factor& factor = factors_[f];
    if (factor.scope.size() == 2) {
      const bool first = factor.scope[0] == v;
      const int w = factor.scope[first ? 1 : 0];
      auto& unary = unary_[at(w)];
      const std::size_t k = unary.size();
      const double* row = first ? factor.data : factor.flipped;
      for (std::size_t s = 0; s < k; ++s) {
        unary[s] += row != nullptr ? row[label * k + s]
                                   : factor.data[s * unary_[at(v)].size() + label];
      }
      auto& list = factors_of_[at(w)];
      list.erase(std::find(list.begin(), list.end(), f));
      continue;
    }
    std::size_t outer = 1, inner = 1;
    bool before = true;
    for (const int w : factor.scope) {
      if (w == v) {
        before = false;
      } else {
        (before ? outer : inner) *= unary_[at(w)].size();
      }
    }
    const std::size_t k = unary_[at(v)].size();
    double* slice = allocate(outer * inner);
    for (std::size_t o = 0; o < outer; ++o) {
      std::copy_n(factor.data + (o * k + label) * inner, inner, slice + o * inner);
    }
    work_ += static_cast<double>(outer * inner);
    factor.scope.erase(std::find(factor.scope.begin(), factor.scope.end(), v));
    factor.data = slice;
    factor.flipped = nullptr;
  }
  disconnect(v);
  for (const int w : around_[at(v)]) push(w);
}

/// The factor's table with `last` as its last dim.
const double* Eliminator::with_last(Factor& factor, int last) {
  if (factor.scope.back() == last) return factor.data;
  if (factor.flipped != nullptr) {
    std::swap(factor.data, factor.flipped);
    std::swap(factor.scope[0], factor.scope[1]);
    return factor.data;
  }
  std::size_t outer = 1, inner = 1, size = unary_[at(last)].size();
  bool before = true;
  for (const int w : factor.scope) {
    if (w == last) {
      before = false;
    } else {
      (before ? outer : inner) *= unary_[at(w)].size();
    }
  }
  double* moved = allocate(outer * inner * size);
  for (std::size_t o = 0; o < outer; ++o) {
    for (std::size_t s = 0; s < size; ++s) {
      for (std::size_t i = 0; i < inner; ++i) {
        moved[(o * inner + i) * size + s] = factor.data[(o * size + s) * inner + i];
      }
    }
  }
  work_ += static_cast<double>(outer * inner * size);
  factor.scope.erase(std::find(factor.scope.begin(), factor.scope.end(), last));
  factor.scope.push_back(last);
  factor.data = moved;
  return moved;
}

void Eliminator::eliminate(int v) {
  const auto& around = around_[at(v)];
  const auto& unary = unary_[at(v)];
  if (around.empty()) {
    done_[at(v)] = 1;
    return;
  }
  std::vector<int> scope = around;
  // the widest node is the last dim, over which the innermost loop runs
  std::swap(*std::max_element(scope.begin(), scope.end(),
                              [&](int a, int b) {
                                return unary_[at(a)].size() < unary_[at(b)].size();
                              }),
            scope.back());
  const int last = scope.back();
  const std::size_t k = unary.size(), columns = unary_[at(last)].size(), dims = scope.size() - 1;

  struct Walk {
    const double* data;
    std::size_t step;                  // from one label of v to the next
    std::vector<std::size_t> strides;  // of all dims of the scope but the last
    bool has_last;
  };
  std::vector<Walk> walks;
  for (const std::size_t f : factors_of_[at(v)]) {
    Factor& factor = factors_[f];
    const bool has_last = std::find(factor.scope.begin(), factor.scope.end(), last) != factor.scope.end();
    if (has_last) with_last(factor, last);
    Walk walk{factor.data, 0, std::vector<std::size_t>(dims, 0), has_last};
    std::size_t stride = 1;
    for (std::size_t d = factor.scope.size(); d-- > 0;) {
      const int w = factor.scope[d];
      if (w == v) {
        walk.step = stride;
      } else if (w != last) {
        walk.strides[at(static_cast<int>(std::find(scope.begin(), scope.end(), w) - scope.begin()))] =
            stride;
      }
      stride *= unary_[at(w)].size();
    }
    walks.push_back(std::move(walk));
    for (const int w : factor.scope) {
      if (w == v) continue;
      auto& list = factors_of_[at(w)];
      list.erase(std::find(list.begin(), list.end(), f));
    }
  }

  std::size_t outer = 1;
  for (std::size_t d = 0; d < dims; ++d) outer *= unary_[at(scope[d])].size();
  double* result = allocate(outer * columns);
  std::vector<std::size_t> index(dims, 0), steps;
  std::vector<const double*> rows;
  Reals base(k);
  for (const auto& walk : walks) {
    if (walk.has_last) steps.push_back(walk.step);
  }
  for (std::size_t o = 0; o < outer; ++o) {
    rows.clear();
    std::copy(unary.begin(), unary.end(), base.begin());
    for (const auto& walk : walks) {
      std::size_t offset = 0;
      for (std::size_t d = 0; d < dims; ++d) offset += index[d] * walk.strides[d];
      if (walk.has_last) {
        rows.push_back(walk.data + offset);
      } else {
        for (std::size_t s = 0; s < k; ++s) base[s] += walk.data[offset + s * walk.step];
      }
    }
    min_sum(base.data(), k, rows.data(), steps.data(), rows.size(), columns, result + o * columns);
    for (std::size_t d = dims; d-- > 0;) {
      if (++index[d] < unary_[at(scope[d])].size()) break;
      index[d] = 0;
    }
  }
  work_ += static_cast<double>(outer * columns * k);

  if (scope.size() == 1) {
    auto& to = unary_[at(last)];
    for (std::size_t s = 0; s < columns; ++s) to[s] += result[s];
  } else {
    for (const int w : scope) factors_of_[at(w)].push_back(factors_.size());
    factors_.push_back({std::move(scope), result, nullptr});
  }
  join_neighbours(v);
}

void Eliminator::join_neighbours(int v) {
  const auto& around = around_[at(v)];
  disconnect(v);
  for (const int a : around) {
    auto& list = around_[at(a)];
    for (const int b : around) {
      if (a == b) continue;
      const auto place = std::lower_bound(list.begin(), list.end(), b);
      if (place == list.end() || *place != b) {
        list.insert(place, b);
        log_size_[at(a)] += std::log(static_cast<double>(unary_[at(b)].size()));
      }
    }
  }
  for (const int w : around) push(w);
}

bool Eliminator::is_narrow(double widest) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) push(static_cast<int>(i));
  for (int v = 0; next(v);) {
    if (log_size_[at(v)] > widest) return false;
    join_neighbours(v);
  }
  return true;
}

std::size_t Eliminator::choose(int v, const Labels& x) const {
  Reals total = unary_[at(v)];
  for (const std::size_t f : factors_of_[at(v)]) {
    const Factor& factor = factors_[f];
    std::size_t offset = 0, step = 0, stride = 1;
    for (std::size_t d = factor.scope.size(); d-- > 0;) {
      const int w = factor.scope[d];
      if (w == v) {
        step = stride;
      } else {
        offset += stride * at(x[at(nodes_[at(w)])]);
      }
      stride *= unary_[at(w)].size();
    }
    for (std::size_t s = 0; s < total.size(); ++s) total[s] += factor.data[offset + s * step];
  }
  return static_cast<std::size_t>(std::min_element(total.begin(), total.end()) - total.begin());
}

bool Eliminator::next(int& v) {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [node, version] = heap_.back().second;
    heap_.pop_back();
    if (!done_[at(node)] && version == version_[at(node)]) {
      v = node;
      return true;
    }
  }
  return false;
}

void Eliminator::trace_back(const std::vector<int>& order, Labels& x) const {
  for (auto v = order.rbegin(); v != order.rend(); ++v) {
    x[at(nodes_[at(*v)])] = static_cast<Label>(choose(*v, x));
  }
}

bool Eliminator::decide(const double* theta, Node root, double entries,
                        std::vector<Labels>& choices) {
  std::vector<Node> all(model_.n);
  std::iota(all.begin(), all.end(), 0);
  load(theta, all, {});
  done_[at(root)] = 1;  // its tables are joined, but it is never minimised over
  for (const int v : all) push(v);
  std::vector<int> order;
  bool fits = true;
  for (int v = 0; fits && next(v);) {
    fits = log_size_[at(v)] <= std::log(entries) + kRounding && allocated_ < kMostMemory;
    if (fits) eliminate(v);
    order.push_back(v);
  }
  choices.clear();
  for (std::size_t s = 0; fits && s < model_.width(at(root)); ++s) {
    choices.emplace_back(model_.n, 0);
    choices.back()[at(root)] = static_cast<Label>(s);
    trace_back(order, choices.back());
  }
  for (const Node node : all) local_[at(node)] = -1;
  return fits;
}

std::size_t Eliminator::run(const double* theta, const std::vector<Node>& free, double entries,
                            Node keep, Random& random, Labels& x, bool exact) {
  load(theta, free, x);
  const double widest = std::log(entries) + kRounding;
  if (exact) {  // the order depends on no table, so check it before computing any
    const bool narrow = is_narrow(widest);
    if (!narrow) {
      for (const Node node : free) local_[at(node)] = -1;
      return 1;
    }
    load(theta, free, x);
  }
  const int kept = keep < 0 ? -1 : local_[at(keep)];
  for (std::size_t i = 0; i < free.size(); ++i) push(static_cast<int>(i));
  std::vector<int> order;
  std::size_t held = 0;
  for (int v = 0; next(v);) {
    if (log_size_[at(v)] <= widest && allocated_ < kMostMemory) {
      eliminate(v);
      order.push_back(v);
      continue;
    }
    if (exact) {
      for (const Node node : free) local_[at(node)] = -1;
      return 1;
    }
    int worst = v;
    double most = -1.0;
    const auto consider = [&](int w) {
      const double score =
          w == kept ? 0.0 : static_cast<double>(around_[at(w)].size() + 1) * uniform(random);
      if (score > most) most = score, worst = w;
    };
    consider(v);
    for (const int w : around_[at(v)]) consider(w);
    hold(worst, at(x[at(nodes_[at(worst)])]));
    ++held;
    if (worst != v) push(v);
  }
  trace_back(order, x);
  for (const Node node : free) local_[at(node)] = -1;
  return held;
}

}  // namespace autoshard
