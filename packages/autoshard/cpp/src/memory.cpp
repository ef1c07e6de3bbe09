#include "autoshard/memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace autoshard {

void join(Pieces& pieces) {
  if (pieces.size() < 2) return;
  std::vector<std::int32_t> breaks;
  for (const auto& piece : pieces) {
    breaks.push_back(piece.first);
    breaks.push_back(piece.last);
  }
  std::sort(breaks.begin(), breaks.end());
  breaks.erase(std::unique(breaks.begin(), breaks.end()), breaks.end());
  const std::size_t k = pieces[0].usage.size();
  // the change of usage at each break; their running sum is the usage
  std::vector<double> changes(breaks.size() * k, 0.0);
  std::vector<std::int32_t> alive(breaks.size(), 0);
  const auto at = [&](std::int32_t row) {
    return static_cast<std::size_t>(std::lower_bound(breaks.begin(), breaks.end(), row) -
                                    breaks.begin());
  };
  for (const auto& piece : pieces) {
    const std::size_t from = at(piece.first), to = at(piece.last);
    for (std::size_t s = 0; s < k; ++s) {
      changes[from * k + s] += piece.usage[s];
      changes[to * k + s] -= piece.usage[s];
    }
    ++alive[from];
    --alive[to];
  }
  Pieces joined;
  std::vector<double> usage(k, 0.0);
  std::int32_t n_alive = 0;
  for (std::size_t i = 0; i + 1 < breaks.size(); ++i) {
    n_alive += alive[i];
    for (std::size_t s = 0; s < k; ++s) usage[s] += changes[i * k + s];
    if (n_alive == 0) {
      std::fill(usage.begin(), usage.end(), 0.0);
    } else if (!joined.empty() && joined.back().last == breaks[i] && joined.back().usage == usage) {
      joined.back().last = breaks[i + 1];
    } else {
      joined.push_back({breaks[i], breaks[i + 1], usage});
    }
  }
  pieces = std::move(joined);
}

std::vector<double> Memory::fixed() const {
  std::vector<double> result(rows());
  double total = 0.0;
  for (std::size_t row = 0; row < rows(); ++row) result[row] = total += change[row];
  return result;
}

Memory Memory::of(const Problem& problem, std::vector<Pieces>& pieces) {
  std::vector<std::pair<std::int64_t, bool>> events;  // at equal times, ends come before starts
  for (std::size_t node = 0; node < problem.n_nodes; ++node) {
    const auto from = problem.intervals[2 * node], to = problem.intervals[2 * node + 1];
    if (from < to) {
      events.emplace_back(to, false);
      events.emplace_back(from, true);
    }
  }
  std::sort(events.begin(), events.end());
  std::vector<std::int64_t> times;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    if (events[i].second && !events[i + 1].second) times.push_back(events[i].first);
  }
  Memory memory;
  memory.limit = problem.limit;
  // Sums of whole numbers are exact in any order; sums of fractions in different orders may differ
  // in their last digits. A choice that just meets the limit must fit here, or bounds would be
  // wrong. One that exceeds it by no more than this tolerance also fits in `evaluate` (ROUNDING).
  const bool exact = std::all_of(problem.usages, problem.usages + problem.n_costs,
                                 [](double usage) { return usage == std::floor(usage); });
  if (!exact) memory.limit *= 1.0 + 5e-13;
  memory.change.assign(times.size() + 1, 0.0);
  for (std::size_t row = 0; row < times.size(); ++row) {
    memory.times.push_back(static_cast<std::int32_t>(row));
  }
  pieces.assign(problem.n_nodes, {});
  const double* usage = problem.usages;
  for (std::size_t node = 0; node < problem.n_nodes; ++node) {
    const auto n = problem.n_strategies[node];
    const auto row = [&](std::int64_t time) {
      return static_cast<std::int32_t>(std::lower_bound(times.begin(), times.end(), time) -
                                       times.begin());
    };
    const auto first = row(problem.intervals[2 * node]), last = row(problem.intervals[2 * node + 1]);
    if (first < last && problem.intervals[2 * node] < problem.intervals[2 * node + 1]) {
      pieces[node].push_back({first, last, std::vector<double>(usage, usage + n)});
    }
    usage += n;
  }
  return memory;
}

void Memory::normalise(Pieces& pieces) {
  for (auto& piece : pieces) {
    const double least = *std::min_element(piece.usage.begin(), piece.usage.end());
    if (least != 0.0) {
      change[static_cast<std::size_t>(piece.first)] += least;
      change[static_cast<std::size_t>(piece.last)] -= least;
      for (double& usage : piece.usage) usage -= least;
    }
  }
  pieces.erase(std::remove_if(pieces.begin(), pieces.end(),
                              [](const Piece& piece) {
                                return *std::max_element(piece.usage.begin(), piece.usage.end()) <= 0;
                              }),
               pieces.end());
}

bool Memory::drop_rows(std::vector<Pieces>& pieces) {
  const std::size_t n = rows();
  const std::vector<double> now = fixed();
  std::vector<double> most_change(n + 1, 0.0);
  std::vector<char> breaks(n + 1, 0);
  for (const auto& of_node : pieces) {
    for (const auto& piece : of_node) {
      const double most = *std::max_element(piece.usage.begin(), piece.usage.end());
      most_change[static_cast<std::size_t>(piece.first)] += most;
      most_change[static_cast<std::size_t>(piece.last)] -= most;
      breaks[static_cast<std::size_t>(piece.first)] = 1;
      breaks[static_cast<std::size_t>(piece.last)] = 1;
    }
  }
  std::vector<std::int32_t> before(n + 1, 0);  // the number of rows kept before each row
  std::vector<double> kept;
  std::vector<std::int32_t> kept_times;
  double total = 0.0;
  bool joins = false;  // whether the last kept row differs from this one only in fixed usage
  for (std::size_t row = 0; row < n; ++row) {
    before[row] = static_cast<std::int32_t>(kept.size());
    total += most_change[row];
    if (breaks[row]) joins = false;
    // the tolerance allows for rounding of the sums
    if (now[row] + total <= limit * (1.0 - 1e-12)) continue;
    if (joins) {
      kept.back() = std::max(kept.back(), now[row]);
      // no piece ends between joined rows: pieces end at breaks
    } else {
      kept.push_back(now[row]);
      kept_times.push_back(times[row]);
      joins = true;
    }
  }
  before[n] = static_cast<std::int32_t>(kept.size());
  const bool dropped = kept.size() < n;
  if (dropped) {
    for (auto& of_node : pieces) {
      for (auto& piece : of_node) {
        piece.first = before[static_cast<std::size_t>(piece.first)];
        piece.last = before[static_cast<std::size_t>(piece.last)];
      }
      of_node.erase(std::remove_if(of_node.begin(), of_node.end(),
                                   [](const Piece& piece) { return piece.first >= piece.last; }),
                    of_node.end());
    }
    times = std::move(kept_times);
    change.assign(kept.size() + 1, 0.0);
    for (std::size_t row = 0; row < kept.size(); ++row) {
      change[row] = kept[row] - (row > 0 ? kept[row - 1] : 0.0);
    }
  }
  return dropped;
}

}  // namespace autoshard
