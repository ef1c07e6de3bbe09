#include "autoshard/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

namespace autoshard {

namespace {

// Dominance in a node is tested only if that takes at most this many comparisons, and a node is
// minimised over only if that takes at most this many additions: about 10 ms.
constexpr double kEffort = 2e7;
// A table that replaces two may have at most this many times their entries.
constexpr double kGrowth = 2.0;

/// An edge. It uses the problem's table until it changes, since many edges of a program share one.
struct Link {
  Node i, j;
  const double* data;
  std::vector<double> own;
  bool alive = true, fresh = true;  // fresh: not visited since it changed

  Link(Node i_, Node j_, const double* shared) : i(i_), j(j_), data(shared) {}
  Link(Node i_, Node j_, std::vector<double> table) : i(i_), j(j_), own(std::move(table)) {
    data = own.data();
  }
  void set(std::vector<double> table) {
    own = std::move(table);
    data = own.data();
    fresh = true;
  }
};

class Reducer {
 public:
  explicit Reducer(const Problem& problem) : Reducer(problem.n_nodes) {
    memory_ = Memory::of(problem, pieces_);
    const double* cost = problem.costs;
    for (std::size_t v = 0; v < n_; ++v) {
      const auto k = static_cast<std::size_t>(problem.n_strategies[v]);
      kept_[v].resize(k);
      for (std::size_t s = 0; s < k; ++s) kept_[v][s] = static_cast<Label>(s);
      costs_[v].assign(cost, cost + k);
      cost += k;
    }
    for (std::size_t e = 0; e < problem.n_edges; ++e) {
      const auto i = static_cast<Node>(problem.edges[2 * e]);
      const auto j = static_cast<Node>(problem.edges[2 * e + 1]);
      const double* table = problem.tables + problem.table_starts[e];
      if (const auto parallel = find(i, j); parallel < links_.size()) {
        add_to(parallel, i, table);
      } else {
        link(Link(i, j, table));
      }
    }
  }

  /// Goes on after an earlier reduction, without some of its labels.
  Reducer(Reduced&& reduced, const std::vector<char>& dropped) : Reducer(reduced.n_original) {
    memory_ = std::move(reduced.memory);
    constant_ = reduced.constant;
    trail_ = std::move(reduced.trail);
    std::fill(alive_.begin(), alive_.end(), 0);
    std::size_t label = 0;
    for (std::size_t i = 0; i < reduced.nodes.size(); ++i) {
      const auto v = at(reduced.nodes[i]);
      alive_[v] = 1;
      kept_[v] = std::move(reduced.kept[i]);
      costs_[v] = std::move(reduced.costs[i]);
      pieces_[v] = std::move(reduced.pieces[i]);
      for (double& cost : costs_[v]) {
        if (dropped[label++]) cost = kForbidden;
      }
    }
    for (auto& edge : reduced.edges) {
      link(Link(reduced.nodes[at(edge.i)], reduced.nodes[at(edge.j)], std::move(edge.table)));
    }
  }

  Reduced run(const Poll& poll) {
    for (std::size_t v = 0; v < n_; ++v) memory_.normalise(pieces_[v]);
    memory_.drop_rows(pieces_);
    do {
      for (std::size_t v = 0; v < n_; ++v) touch(static_cast<Node>(v));
      while (!queue_.empty() && possible_) {
        poll();
        const Node v = queue_.front();
        queue_.pop_front();
        queued_[at(v)] = 0;
        if (alive_[at(v)]) visit(v);
      }
    } while (possible_ && memory_.drop_rows(pieces_));
    return result();
  }

  /// The reduced problem.
  Reduced result() {
    Reduced reduced;
    reduced.n_original = n_;
    reduced.possible = possible_;
    reduced.constant = constant_;
    reduced.trail = std::move(trail_);
    reduced.memory = std::move(memory_);
    if (!possible_) return reduced;
    std::vector<Node> position(n_, -1);
    for (std::size_t v = 0; v < n_; ++v) {
      if (!alive_[v]) continue;
      position[v] = static_cast<Node>(reduced.nodes.size());
      reduced.nodes.push_back(static_cast<Node>(v));
      reduced.kept.push_back(std::move(kept_[v]));
      reduced.pieces.push_back(std::move(pieces_[v]));
    }
    for (auto& link : links_) {
      if (!link.alive) continue;
      const Node i = std::min(link.i, link.j), j = std::max(link.i, link.j);
      reduced.edges.push_back({position[at(i)], position[at(j)], rows_of(link, i)});
    }
    for (const Node v : reduced.nodes) reduced.costs.push_back(std::move(costs_[at(v)]));
    return reduced;
  }

 private:
  explicit Reducer(std::size_t n)
      : n_(n), kept_(n), costs_(n), pieces_(n), links_of_(n), alive_(n, 1), queued_(n, 0),
        joined_(n, 1) {}

  static std::size_t at(Node v) { return static_cast<std::size_t>(v); }
  std::size_t width(Node v) const { return costs_[at(v)].size(); }
  Node other(const Link& link, Node v) const { return link.i == v ? link.j : link.i; }

  void touch(Node v) {
    if (alive_[at(v)] && !queued_[at(v)]) {
      queued_[at(v)] = 1;
      queue_.push_back(v);
    }
  }

  static std::vector<double> transposed(const double* table, std::size_t rows,
                                        std::size_t columns) {
    std::vector<double> result(rows * columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = table[r * columns + c];
    }
    return result;
  }

  std::size_t size(const Link& link) const { return width(link.i) * width(link.j); }

  /// The table with a row for each strategy of `v`.
  std::vector<double> rows_of(const Link& link, Node v) const {
    if (link.i != v) return transposed(link.data, width(link.i), width(link.j));
    return std::vector<double>(link.data, link.data + size(link));
  }

  void link(Link added) {
    links_of_[at(added.i)].push_back(links_.size());
    links_of_[at(added.j)].push_back(links_.size());
    links_.push_back(std::move(added));
  }

  /// The edge between two nodes; `links_.size()` if there is none.
  std::size_t find(Node i, Node j) const {
    const bool fewer = links_of_[at(i)].size() < links_of_[at(j)].size();
    const Node v = fewer ? i : j, w = fewer ? j : i;
    for (const std::size_t e : links_of_[at(v)]) {
      if (other(links_[e], v) == w) return e;
    }
    return links_.size();
  }

  /// Adds a table with a row for each strategy of `i` to an edge.
  void add_to(std::size_t e, Node i, const double* table) {
    Link& link = links_[e];
    std::vector<double> total(link.data, link.data + size(link));
    const std::size_t rows = width(link.i), columns = width(link.j);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        total[r * columns + c] += link.i == i ? table[r * columns + c] : table[c * rows + r];
      }
    }
    link.set(std::move(total));
  }

  void add_table(Node i, Node j, std::vector<double> table) {
    if (const auto parallel = find(i, j); parallel < links_.size()) {
      add_to(parallel, i, table.data());
    } else {
      link(Link(i, j, std::move(table)));
    }
  }

  void remove(std::size_t e) {
    auto& link = links_[e];
    link.alive = false;
    std::vector<double>().swap(link.own);
    for (const Node v : {link.i, link.j}) {
      auto& list = links_of_[at(v)];
      list.erase(std::find(list.begin(), list.end(), e));
    }
  }

  void touch_neighbours(Node v) {
    for (const std::size_t e : links_of_[at(v)]) touch(other(links_[e], v));
  }

  void visit(Node v) {
    drop_impossible(v);
    if (!possible_) return;
    for (const std::size_t e : std::vector<std::size_t>(links_of_[at(v)])) {
      if (links_[e].fresh && !split(e)) {
        links_[e].fresh = false;
        if (merge(e)) return;
      }
    }
    if (!joined_[at(v)]) {
      join(pieces_[at(v)]);
      memory_.normalise(pieces_[at(v)]);
      joined_[at(v)] = 1;
    }
    drop_dominated(v);
    if (width(v) == 1) {
      settle(v);
    } else if (links_of_[at(v)].size() <= 2 && pieces_[at(v)].empty()) {
      eliminate(v);
    } else if (links_of_[at(v)].size() == 1) {
      merge_leaf(v);
    }
  }

  void keep(Node v, const std::vector<std::size_t>& strategies) {
    const std::size_t before = width(v);
    const auto pick = [&](auto& values) {
      for (std::size_t k = 0; k < strategies.size(); ++k) values[k] = values[strategies[k]];
      values.resize(strategies.size());
    };
    for (const std::size_t e : links_of_[at(v)]) {
      Link& link = links_[e];
      std::vector<double> table;
      if (link.i == v) {
        const std::size_t columns = width(link.j);
        table.reserve(strategies.size() * columns);
        for (const std::size_t s : strategies) {
          table.insert(table.end(), link.data + s * columns, link.data + (s + 1) * columns);
        }
      } else {
        const std::size_t rows = width(link.i);
        table.reserve(strategies.size() * rows);
        for (std::size_t r = 0; r < rows; ++r) {
          for (const std::size_t s : strategies) table.push_back(link.data[r * before + s]);
        }
      }
      link.set(std::move(table));
    }
    pick(kept_[at(v)]);
    pick(costs_[at(v)]);
    for (auto& piece : pieces_[at(v)]) pick(piece.usage);
    joined_[at(v)] = 0;
    touch(v);
    touch_neighbours(v);
  }

  void drop_impossible(Node v) {
    std::vector<char> ok(width(v));
    for (std::size_t s = 0; s < ok.size(); ++s) ok[s] = costs_[at(v)][s] < kForbidden;
    for (const std::size_t e : links_of_[at(v)]) {
      const auto& link = links_[e];
      const std::size_t rows = width(link.i), columns = width(link.j);
      std::vector<char> found(width(v), 0);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          if (link.data[r * columns + c] < kForbidden) found[link.i == v ? r : c] = 1;
        }
      }
      for (std::size_t s = 0; s < ok.size(); ++s) ok[s] = ok[s] && found[s];
    }
    std::vector<std::size_t> strategies;
    for (std::size_t s = 0; s < ok.size(); ++s) {
      if (ok[s]) strategies.push_back(s);
    }
    if (strategies.empty()) {
      possible_ = false;
    } else if (strategies.size() < ok.size()) {
      keep(v, strategies);
    }
  }

  /// Turns an edge into node costs if its table is a sum a[s] + b[t].
  bool split(std::size_t e) {
    const Link link_ends(links_[e].i, links_[e].j, links_[e].data);
    const auto& link = link_ends;
    const std::size_t rows = width(link.i), columns = width(link.j);
    const double* t = link.data;
    if (!std::isfinite(t[0])) return false;
    for (std::size_t r = 0; r < rows; ++r) {
      const double shift = t[r * columns] - t[0];
      for (std::size_t c = 0; c < columns; ++c) {
        if (!(t[r * columns + c] == t[c] + shift) || !std::isfinite(t[r * columns + c])) return false;
      }
    }
    for (std::size_t r = 0; r < rows; ++r) costs_[at(link.i)][r] += t[r * columns] - t[0];
    for (std::size_t c = 0; c < columns; ++c) costs_[at(link.j)][c] += t[c];
    touch(link.i);
    touch(link.j);
    remove(e);
    return true;
  }

  /// Merges one end of an edge into the other if its strategy follows from the other's.
  bool merge(std::size_t e) {
    const auto& link = links_[e];
    const std::size_t rows = width(link.i), columns = width(link.j);
    std::vector<std::size_t> in_row(rows, 0), in_column(columns, 0), of_row(rows), of_column(columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        if (link.data[r * columns + c] < kForbidden) {
          ++in_row[r];
          ++in_column[c];
          of_row[r] = c;
          of_column[c] = r;
        }
      }
    }
    const auto one = [](const std::vector<std::size_t>& counts) {
      return std::all_of(counts.begin(), counts.end(), [](std::size_t n) { return n == 1; });
    };
    if (one(in_row)) {
      absorb(link.i, link.j, of_row);
    } else if (one(in_column)) {
      absorb(link.j, link.i, of_column);
    } else {
      return false;
    }
    return true;
  }

  /// Merges `v` into `u`; `v` takes strategy `follows[s]` when `u` takes s.
  void absorb(Node u, Node v, const std::vector<std::size_t>& follows) {
    record(v, {u}, std::vector<Label>(follows.begin(), follows.end()));
    for (std::size_t s = 0; s < follows.size(); ++s) costs_[at(u)][s] += costs_[at(v)][follows[s]];
    Pieces moved = std::move(pieces_[at(v)]);
    for (auto& piece : moved) {
      std::vector<double> usage(follows.size());
      for (std::size_t s = 0; s < follows.size(); ++s) usage[s] = piece.usage[follows[s]];
      piece.usage = std::move(usage);
    }
    if (!moved.empty()) {
      pieces_[at(u)].insert(pieces_[at(u)].end(), moved.begin(), moved.end());
      joined_[at(u)] = 0;
    }
    for (const std::size_t e : std::vector<std::size_t>(links_of_[at(v)])) {
      const Node w = other(links_[e], v);
      const std::size_t columns = width(w);
      const auto table = rows_of(links_[e], v);
      remove(e);
      if (w == u) {
        for (std::size_t s = 0; s < follows.size(); ++s) {
          costs_[at(u)][s] += table[follows[s] * columns + s];
        }
        continue;
      }
      std::vector<double> mapped(follows.size() * columns);
      for (std::size_t s = 0; s < follows.size(); ++s) {
        std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(follows[s] * columns), columns,
                    mapped.begin() + static_cast<std::ptrdiff_t>(s * columns));
      }
      add_table(u, w, std::move(mapped));
      touch(w);
    }
    alive_[at(v)] = 0;
    touch(u);
  }

  void record(Node v, std::vector<Node> others, std::vector<Label> best) {
    std::vector<std::vector<Label>> others_kept;
    for (const Node u : others) others_kept.push_back(kept_[at(u)]);
    trail_.push_back({v, kept_[at(v)], std::move(others), std::move(others_kept), std::move(best)});
  }

  /// Drops strategies that are dominated by another one.
  void drop_dominated(Node v) {
    const std::size_t k = width(v);
    double effort = 0.0;
    for (const std::size_t e : links_of_[at(v)]) effort += static_cast<double>(width(other(links_[e], v)));
    if (k == 1 || static_cast<double>(k * k) > kEffort) return;
    std::vector<std::vector<double>> tables;
    std::vector<std::vector<std::size_t>> cheapest;  // for each table and strategy: a column
    for (const std::size_t e : links_of_[at(v)]) {
      tables.push_back(rows_of(links_[e], v));
      const std::size_t columns = tables.back().size() / k;
      cheapest.emplace_back(k);
      for (std::size_t s = 0; s < k; ++s) {
        const auto row = tables.back().begin() + static_cast<std::ptrdiff_t>(s * columns);
        cheapest.back()[s] = static_cast<std::size_t>(
            std::min_element(row, row + static_cast<std::ptrdiff_t>(columns)) - row);
      }
    }
    double spent = 0.0;
    std::vector<char> alive(k, 1);
    // of equal strategies the first is kept, so the last ones are tested first
    for (std::size_t s = k; s-- > 0 && spent < kEffort;) {
      for (std::size_t t = 0; t < k; ++t) {
        if (t == s || !alive[t]) continue;
        double excess = costs_[at(v)][t] - costs_[at(v)][s];
        // test the neighbours' strategies that suit s best: nearly always, they show that t may
        // cost more
        double quick = excess;
        for (std::size_t e = 0; e < tables.size(); ++e) {
          const std::size_t columns = tables[e].size() / k;
          quick += tables[e][t * columns + cheapest[e][s]] - tables[e][s * columns + cheapest[e][s]];
        }
        if (quick > 0.0) continue;
        if (!uses_less(v, t, s)) continue;
        spent += effort;
        for (std::size_t e = 0; e < tables.size() && excess < kForbidden; ++e) {
          const std::size_t columns = tables[e].size() / k;
          const double* to = tables[e].data() + t * columns;
          const double* from = tables[e].data() + s * columns;
          double most = -kForbidden;
          for (std::size_t c = 0; c < columns; ++c) {
            // a column that s forbids does not matter
            if (from[c] < kForbidden) most = std::max(most, to[c] - from[c]);
          }
          excess += most;
        }
        if (excess <= 0.0) {
          alive[s] = 0;
          break;
        }
      }
    }
    std::vector<std::size_t> strategies;
    for (std::size_t s = 0; s < k; ++s) {
      if (alive[s]) strategies.push_back(s);
    }
    if (strategies.size() < k) keep(v, strategies);
  }

  bool uses_less(Node v, std::size_t t, std::size_t s) const {
    for (const auto& piece : pieces_[at(v)]) {
      if (piece.usage[t] > piece.usage[s]) return false;
    }
    return true;
  }

  /// Removes a node with one strategy left: its tables become costs of its neighbours.
  void settle(Node v) {
    record(v, {}, {0});
    constant_ += costs_[at(v)][0];
    for (const std::size_t e : std::vector<std::size_t>(links_of_[at(v)])) {
      const Node w = other(links_[e], v);
      for (std::size_t s = 0; s < width(w); ++s) costs_[at(w)][s] += links_[e].data[s];
      remove(e);
      touch(w);
    }
    alive_[at(v)] = 0;
  }

  /// Minimises over a node with at most two neighbours whose memory does not matter.
  void eliminate(Node v) {
    const auto& cost = costs_[at(v)];
    const auto& list = links_of_[at(v)];
    const std::size_t k = cost.size();
    if (list.empty()) {
      const auto best = std::min_element(cost.begin(), cost.end()) - cost.begin();
      record(v, {}, {static_cast<Label>(best)});
      constant_ += cost[static_cast<std::size_t>(best)];
      alive_[at(v)] = 0;
      return;
    }
    const Node a = other(links_[list[0]], v);
    const auto to_a = rows_of(links_[list[0]], a);
    if (list.size() == 1) {
      std::vector<Label> best(width(a));
      for (std::size_t s = 0; s < best.size(); ++s) {
        double least = kForbidden;
        for (std::size_t t = 0; t < k; ++t) {
          const double value = cost[t] + to_a[s * k + t];
          if (value < least) least = value, best[s] = static_cast<Label>(t);
        }
        costs_[at(a)][s] += least;
      }
      record(v, {a}, std::move(best));
      remove(list[0]);
      alive_[at(v)] = 0;
      touch(a);
      return;
    }
    const Node b = other(links_[list[1]], v);
    const auto from_b = rows_of(links_[list[1]], v);
    const std::size_t na = width(a), nb = width(b);
    const double entries = static_cast<double>(na) * static_cast<double>(nb);
    if (entries * static_cast<double>(k) > kEffort ||
        entries > kGrowth * static_cast<double>(k * (na + nb))) {
      return;
    }
    std::vector<double> table(na * nb, kForbidden);
    std::vector<Label> best(na * nb, 0);
    for (std::size_t s = 0; s < na; ++s) {
      for (std::size_t t = 0; t < k; ++t) {
        const double value = cost[t] + to_a[s * k + t];
        for (std::size_t r = 0; r < nb; ++r) {
          if (value + from_b[t * nb + r] < table[s * nb + r]) {
            table[s * nb + r] = value + from_b[t * nb + r];
            best[s * nb + r] = static_cast<Label>(t);
          }
        }
      }
    }
    record(v, {a, b}, std::move(best));
    for (const std::size_t e : std::vector<std::size_t>(list)) remove(e);
    alive_[at(v)] = 0;
    add_table(a, b, std::move(table));
    touch(a);
    touch(b);
  }

  /// Merges a leaf whose memory matters if, for each strategy of its neighbour, its cheapest
  /// strategy is also one that uses least.
  void merge_leaf(Node v) {
    const std::size_t e = links_of_[at(v)][0];
    const Node u = other(links_[e], v);
    const auto table = rows_of(links_[e], v);
    const std::size_t k = width(v), columns = width(u);
    std::vector<std::size_t> follows(columns);
    for (std::size_t c = 0; c < columns; ++c) {
      const auto cost = [&](std::size_t t) { return costs_[at(v)][t] + table[t * columns + c]; };
      std::size_t best = 0;
      for (std::size_t t = 1; t < k; ++t) {
        if (cost(t) < cost(best) || (cost(t) == cost(best) && uses_less(v, t, best))) best = t;
      }
      for (std::size_t t = 0; t < k; ++t) {
        if (cost(t) < kForbidden && !uses_less(v, best, t)) return;
      }
      follows[c] = best;
    }
    absorb(u, v, follows);
  }

  std::size_t n_;
  std::vector<std::vector<Label>> kept_;
  std::vector<std::vector<double>> costs_;
  std::vector<Pieces> pieces_;
  std::vector<std::vector<std::size_t>> links_of_;
  std::vector<Link> links_;
  std::vector<char> alive_, queued_;
  std::vector<char> joined_;  // for each node: whether its pieces are disjoint and normalised
  std::deque<Node> queue_;
  Memory memory_;
  double constant_ = 0.0;
  bool possible_ = true;
  std::vector<Reduced::Step> trail_;
};

}  // namespace

Reduced reduce(const Problem& problem, const Poll& poll) { return Reducer(problem).run(poll); }

Reduced as_it_is(const Problem& problem) { return Reducer(problem).result(); }

Reduced reduce(Reduced reduced, const std::vector<char>& dropped, const Poll& poll) {
  return Reducer(std::move(reduced), dropped).run(poll);
}

std::vector<Label> Reduced::locate(const std::vector<std::int64_t>& choice) const {
  std::vector<Label> labels(nodes.size(), -1);
  for (std::size_t v = 0; v < nodes.size(); ++v) {
    const auto chosen = choice[static_cast<std::size_t>(nodes[v])];
    const auto found = std::lower_bound(kept[v].begin(), kept[v].end(), chosen);
    if (found != kept[v].end() && *found == chosen) {
      labels[v] = static_cast<Label>(found - kept[v].begin());
    }
  }
  return labels;
}

std::vector<std::int64_t> Reduced::expand(const std::vector<Label>& labels) const {
  std::vector<std::int64_t> choice(n_original, 0);
  for (std::size_t v = 0; v < nodes.size(); ++v) {
    choice[static_cast<std::size_t>(nodes[v])] = kept[v][static_cast<std::size_t>(labels[v])];
  }
  for (auto step = trail.rbegin(); step != trail.rend(); ++step) {
    std::size_t position = 0;
    for (std::size_t k = 0; k < step->others.size(); ++k) {
      const auto& list = step->others_kept[k];
      const auto chosen = static_cast<Label>(choice[static_cast<std::size_t>(step->others[k])]);
      position = position * list.size() +
                 static_cast<std::size_t>(std::lower_bound(list.begin(), list.end(), chosen) -
                                          list.begin());
    }
    choice[static_cast<std::size_t>(step->node)] =
        step->kept[static_cast<std::size_t>(step->best[position])];
  }
  return choice;
}

}  // namespace autoshard
