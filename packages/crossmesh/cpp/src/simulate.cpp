#include "crossmesh/simulate.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "crossmesh/ports.hpp"

namespace crossmesh {
namespace {

// Speeds and times within this factor of each other count as equal, so that rounding does not split
// one event in two [chosen: some thousand roundings of a double].
constexpr double kAbove = 1 + 1e-12;

std::vector<Passage> passages_of(const std::vector<Job>& jobs, const Network& network) {
  check(network);
  std::vector<Passage> passages;
  for (const Job& job : jobs) {
    check(job, network);
    passages.push_back(passage(job, network));
  }
  return passages;
}

std::vector<double> fair_speeds(const std::vector<std::size_t>& active,
                                const std::vector<Passage>& passages,
                                const std::vector<double>& whole, const Network& network) {
  const std::size_t n_ports = 2 * network.rates.size();
  std::vector<double> room(n_ports);
  for (std::size_t port = 0; port < n_ports; ++port) {
    room[port] = network.rates[port / 2];
  }
  const auto out = [](const Hop& hop) { return 2 * static_cast<std::size_t>(hop.from); };
  const auto in = [](const Hop& hop) { return 2 * static_cast<std::size_t>(hop.to) + 1; };

  std::vector<double> speeds(active.size(), 0.0);
  std::vector<std::size_t> growing(active.size());
  for (std::size_t k = 0; k < growing.size(); ++k) {
    growing[k] = k;
  }
  double level = 0.0;
  while (!growing.empty()) {
    std::vector<double> weight(n_ports, 0.0);
    for (const std::size_t k : growing) {
      for (const Hop& hop : passages[active[k]].hops) {
        weight[out(hop)] += hop.n_bytes / whole[active[k]];
        weight[in(hop)] += hop.n_bytes / whole[active[k]];
      }
    }
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t port = 0; port < n_ports; ++port) {
      if (weight[port] > 0) {
        step = std::min(step, room[port] / weight[port]);
      }
    }
    level += step;
    std::vector<char> full(n_ports, 0);
    for (std::size_t port = 0; port < n_ports; ++port) {
      if (weight[port] > 0) {
        full[port] = room[port] / weight[port] <= step * kAbove;
        room[port] = std::max(0.0, room[port] - step * weight[port]);
      }
    }
    std::vector<std::size_t> still;
    for (const std::size_t k : growing) {
      const auto& hops = passages[active[k]].hops;
      if (std::any_of(hops.begin(), hops.end(),
                      [&](const Hop& hop) { return full[out(hop)] || full[in(hop)]; })) {
        speeds[k] = level;
      } else {
        still.push_back(k);
      }
    }
    growing = std::move(still);
  }
  return speeds;
}

}  // namespace

std::vector<Run> simulate_in_order(const std::vector<Job>& jobs, const Network& network) {
  Ports ports(2 * network.rates.size());
  std::vector<Run> runs;
  for (Passage& passed : passages_of(jobs, network)) {
    const double at_s = ports.start_s(passed);
    ports.occupy(passed, at_s);
    for (Hop& hop : passed.hops) {
      hop.start_s = at_s + hop.start_s;
    }
    runs.push_back({at_s + passed.total_s, std::move(passed.hops)});
  }
  return runs;
}

std::vector<Run> simulate_together(const std::vector<Job>& jobs, const Network& network) {
  std::vector<Passage> passages = passages_of(jobs, network);
  std::vector<double> whole(jobs.size(), 0.0);
  std::vector<std::size_t> active;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (const Hop& hop : passages[i].hops) {
      whole[i] = std::max(whole[i], hop.n_bytes);
    }
    if (whole[i] > 0) {
      active.push_back(i);
    }
  }
  std::vector<double> left = whole;
  std::vector<double> end_s(jobs.size(), 0.0);
  double now_s = 0.0;
  while (!active.empty()) {
    const std::vector<double> speeds = fair_speeds(active, passages, whole, network);
    double step_s = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < active.size(); ++k) {
      step_s = std::min(step_s, left[active[k]] / speeds[k]);
    }
    now_s += step_s;
    std::vector<std::size_t> still;
    for (std::size_t k = 0; k < active.size(); ++k) {
      const std::size_t i = active[k];
      const bool done = left[i] / speeds[k] <= step_s * kAbove;
      left[i] = done ? 0.0 : left[i] - speeds[k] * step_s;
      end_s[i] = now_s;
      if (left[i] > 0) {
        still.push_back(i);
      }
    }
    active = std::move(still);
  }
  std::vector<Run> runs;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::vector<Hop>& hops = passages[i].hops;
    for (Hop& hop : hops) {
      hop.start_s = 0.0;
      hop.duration_s = end_s[i];
    }
    const double latency_s = static_cast<double>(hops.size()) * network.latency_s;
    runs.push_back({end_s[i] + latency_s, std::move(hops)});
  }
  return runs;
}

}  // namespace crossmesh
