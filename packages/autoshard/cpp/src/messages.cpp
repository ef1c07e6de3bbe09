#include "autoshard/messages.hpp"

#include <algorithm>

#include "autoshard/kernels.hpp"

namespace autoshard {

Messages::Messages(const Model& model)
    : theta(model.costs), model_(model), messages_(model.n_messages, 0.0) {
  std::size_t widest = 0;
  for (std::size_t v = 0; v < model.n; ++v) {
    widest = std::max(widest, model.width(v));
    std::size_t later = 0;
    const std::size_t degree = model.arc[v + 1] - model.arc[v];
    for (std::size_t a = model.arc[v]; a < model.arc[v + 1]; ++a) {
      later += static_cast<std::size_t>(model.arcs[a].to) > v;
    }
    const std::size_t chains = std::max({later, degree - later, std::size_t{1}});
    share_.push_back(1.0 / static_cast<double>(chains));
  }
  buffer_.resize(widest);
  weights_.resize(widest);
}

void Messages::belief(std::size_t v, double* out) const {
  const std::size_t k = model_.width(v);
  std::copy_n(theta.begin() + static_cast<std::ptrdiff_t>(model_.label[v]), k, out);
  for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
    const double* message = messages_.data() + model_.arcs[a].message;
    for (std::size_t s = 0; s < k; ++s) out[s] += message[s];
  }
}

template <bool forward>
double Messages::pass(double most, std::vector<char>* dear) {
  double bound = 0.0;
  double* const total = buffer_.data();
  for (std::size_t q = 0; q < model_.n; ++q) {
    const std::size_t v = forward ? q : model_.n - 1 - q;
    const std::size_t k = model_.width(v);
    belief(v, total);
    const double least = *std::min_element(total, total + k);
    bound += least;
    for (std::size_t s = 0; s < k; ++s) total[s] -= least;
    if (dear != nullptr) {
      for (std::size_t s = 0; s < k; ++s) (*dear)[model_.label[v] + s] |= total[s] > most;
    }
    for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
      const Arc& arc = model_.arcs[a];
      const auto w = static_cast<std::size_t>(arc.to);
      if ((w > v) != forward) continue;
      const double* in = messages_.data() + arc.message;
      for (std::size_t s = 0; s < k; ++s) weights_[s] = share_[v] * total[s] - in[s];
      double* out = messages_.data() + model_.arcs[arc.reverse].message;
      const std::size_t columns = model_.width(w);
      min_plus(model_.tables.data() + arc.table, weights_.data(), k, columns, out);
      const double shift = *std::min_element(out, out + columns);
      bound += shift;
      for (std::size_t s = 0; s < columns; ++s) out[s] -= shift;
    }
  }
  return bound;
}

double Messages::sweep() {
  pass<true>(0.0, nullptr);
  return pass<false>(0.0, nullptr);
}

void Messages::find_dear(double most, std::vector<char>& dear) {
  dear.resize(theta.size());
  pass<true>(most, &dear);
}

void Messages::belief_given(std::size_t v, const Labels& x, double* out) const {
  const std::size_t k = model_.width(v);
  std::copy_n(theta.begin() + static_cast<std::ptrdiff_t>(model_.label[v]), k, out);
  for (std::size_t a = model_.arc[v]; a < model_.arc[v + 1]; ++a) {
    const Arc& arc = model_.arcs[a];
    const auto w = static_cast<std::size_t>(arc.to);
    const double* add = x[w] < 0 ? messages_.data() + arc.message
                                 : model_.tables.data() + model_.arcs[arc.reverse].table +
                                       static_cast<std::size_t>(x[w]) * k;
    for (std::size_t s = 0; s < k; ++s) out[s] += add[s];
  }
}

void Messages::decode(Labels& x) const {
  Reals total(buffer_.size());
  x.assign(model_.n, -1);
  for (std::size_t v = 0; v < model_.n; ++v) {
    belief_given(v, x, total.data());
    x[v] = static_cast<Label>(
        std::min_element(total.begin(), total.begin() + static_cast<std::ptrdiff_t>(model_.width(v))) -
        total.begin());
  }
}

}  // namespace autoshard
