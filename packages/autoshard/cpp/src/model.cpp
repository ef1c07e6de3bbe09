#include "autoshard/model.hpp"

#include <algorithm>
#include <cmath>

namespace autoshard {

namespace {

/// The greatest magnitude of a finite entry. Two entries differ by at most twice as much.
double greatest(const Reals& values) {
  double most = 0.0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

}  // namespace

Model::Model(const Reduced& reduced)
    : n(reduced.nodes.size()),
      rows(reduced.memory.rows()),
      fixed(reduced.memory.fixed()),
      limit(reduced.memory.limit),
      constant(reduced.constant) {
  // the sum of the finite costs of any choice is well within plus or minus half of `forbidden`
  for (const auto& cost : reduced.costs) forbidden += greatest(cost);
  for (const auto& edge : reduced.edges) forbidden += greatest(edge.table);
  forbidden = 4.0 * forbidden + 1.0;

  label.push_back(0);
  for (const auto& cost : reduced.costs) {
    for (const double value : cost) costs.push_back(std::min(value, forbidden));
    label.push_back(costs.size());
  }
  arc.assign(n + 1, 0);
  for (const auto& edge : reduced.edges) {
    ++arc[static_cast<std::size_t>(edge.i) + 1];
    ++arc[static_cast<std::size_t>(edge.j) + 1];
  }
  for (std::size_t v = 0; v < n; ++v) arc[v + 1] += arc[v];
  arcs.resize(arc[n]);
  auto next = arc;
  for (const auto& edge : reduced.edges) {
    const auto i = static_cast<std::size_t>(edge.i), j = static_cast<std::size_t>(edge.j);
    const std::size_t a = next[i]++, b = next[j]++, rows_i = width(i), columns = width(j);
    arcs[a] = {edge.j, tables.size(), n_messages, b};
    n_messages += rows_i;
    for (const double value : edge.table) tables.push_back(std::min(value, forbidden));
    arcs[b] = {edge.i, tables.size(), n_messages, a};
    n_messages += columns;
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t r = 0; r < rows_i; ++r) {
        tables.push_back(std::min(edge.table[r * columns + c], forbidden));
      }
    }
  }
  span.push_back(0);
  for (const auto& pieces : reduced.pieces) {
    for (const auto& piece : pieces) {
      spans.push_back({piece.first, piece.last, usages.size()});
      usages.insert(usages.end(), piece.usage.begin(), piece.usage.end());
    }
    span.push_back(spans.size());
  }
}

double Model::cost(const Labels& x) const {
  double total = 0.0;
  for (std::size_t v = 0; v < n; ++v) {
    const auto s = static_cast<std::size_t>(x[v]);
    total += costs[label[v] + s];
    for (std::size_t a = arc[v]; a < arc[v + 1]; ++a) {
      const auto w = static_cast<std::size_t>(arcs[a].to);
      if (v < w) total += tables[arcs[a].table + s * width(w) + static_cast<std::size_t>(x[w])];
    }
  }
  return total;
}

void Model::use(const Labels& x, Reals& used) const {
  used.assign(rows + 1, 0.0);
  for (std::size_t v = 0; v < n; ++v) {
    for (std::size_t k = span[v]; k < span[v + 1]; ++k) {
      const double usage = usages[spans[k].usage + static_cast<std::size_t>(x[v])];
      used[static_cast<std::size_t>(spans[k].first)] += usage;
      used[static_cast<std::size_t>(spans[k].last)] -= usage;
    }
  }
  double total = 0.0;
  for (std::size_t row = 0; row < rows; ++row) {
    total += used[row];
    used[row] = fixed[row] + total;
  }
  used.pop_back();
}

void Model::add_use(const std::vector<Node>& nodes, const Labels& x, double sign,
                    Reals& used) const {
  for (const Node node : nodes) {
    const auto v = static_cast<std::size_t>(node);
    for (std::size_t k = span[v]; k < span[v + 1]; ++k) {
      const double usage = sign * usages[spans[k].usage + static_cast<std::size_t>(x[v])];
      if (usage == 0.0) continue;
      for (auto row = spans[k].first; row < spans[k].last; ++row) {
        used[static_cast<std::size_t>(row)] += usage;
      }
    }
  }
}

void Model::price(const Reals& prices, Reals& theta) const {
  Reals before(rows + 1, 0.0);  // the sum of prices of earlier rows
  for (std::size_t row = 0; row < rows; ++row) before[row + 1] = before[row] + prices[row];
  theta = costs;
  for (std::size_t v = 0; v < n; ++v) {
    for (std::size_t k = span[v]; k < span[v + 1]; ++k) {
      const double price = before[static_cast<std::size_t>(spans[k].last)] -
                           before[static_cast<std::size_t>(spans[k].first)];
      if (price <= 0.0) continue;
      for (std::size_t s = 0; s < width(v); ++s) {
        theta[label[v] + s] += price * usages[spans[k].usage + s];
      }
    }
  }
}

}  // namespace autoshard
