#include "crossmesh/network.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace crossmesh {
namespace {

// share.cpp searches the flow through hosts recursively; the depth is up to the number of hosts.
constexpr std::size_t kMostHosts = 16384;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;
// The limit of rates and latencies, so that no sum, quotient or product of them becomes infinite.
constexpr double kExtreme = 1e100;

std::size_t out_port(Host host) { return 2 * static_cast<std::size_t>(host); }
std::size_t in_port(Host host) { return out_port(host) + 1; }

double rate(const Network& network, Host host) {
  return network.rates[static_cast<std::size_t>(host)];
}

using Pairs = std::vector<std::pair<Host, Host>>;

// The next host of a term on its way to the last adder.
Host next_adder(const Job& job, std::size_t i) {
  return job.path[job.chained ? i + 1 : job.n_adders - 1];
}

void pipeline(const Job& job, const Network& network, Passage& made) {
  const auto n_bytes = static_cast<double>(
      job.strategy == Strategy::signal ? std::min<std::int64_t>(job.n_bytes, 1) : job.n_bytes);
  std::map<std::size_t, int> times;
  double duration_s = 0.0;
  double depth = 0.0;  // hops before this one
  std::vector<double> depths;
  Pairs pairs;
  for (std::size_t i = 0; i + 1 < job.path.size(); ++i) {
    const bool adds = i + 1 < job.n_adders;
    const Host here = job.path[i];
    const Host there = adds ? next_adder(job, i) : job.path[i + 1];
    if (here == there) {
      continue;
    }
    duration_s = std::max(duration_s, ++times[out_port(here)] * n_bytes / rate(network, here));
    duration_s = std::max(duration_s, ++times[in_port(there)] * n_bytes / rate(network, there));
    pairs.emplace_back(here, there);
    // Terms that do not wait for each other start together.
    const bool together = adds && !job.chained;
    depths.push_back(together ? 0.0 : depth);
    depth = together ? 1.0 : depth + 1.0;
  }
  const double step_s = duration_s / static_cast<double>(job.n_chunks) + network.latency_s;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    made.hops.push_back({pairs[i].first, pairs[i].second, depths[i] * step_s, duration_s, n_bytes});
  }
  if (!pairs.empty()) {
    made.total_s = made.hops.back().start_s + duration_s + network.latency_s;
  }
}

// Pairs of positions on the path (from, to), in an order in which each has all that it sends on.
std::vector<std::pair<std::size_t, std::size_t>> legs_of(const Job& job) {
  std::vector<std::pair<std::size_t, std::size_t>> legs;
  const std::size_t root = job.n_adders - 1;
  for (std::size_t i = 0; i < root; ++i) {
    legs.emplace_back(i, !job.tree.empty() ? job.tree[i] : job.chained ? i + 1 : root);
  }
  for (std::size_t i = root + 1; i < job.path.size(); ++i) {
    legs.emplace_back(job.tree.empty() ? i - 1 : job.tree[i - 1], i);
  }
  return legs;
}

void relay(const Job& job, const Network& network, Passage& made) {
  const auto n_bytes = static_cast<double>(job.n_bytes);
  std::vector<double> ready_s(job.path.size(), 0.0);
  std::map<std::size_t, double> free_s;
  for (const auto& [from, to] : legs_of(job)) {
    const Host here = job.path[from];
    const Host there = job.path[to];
    double arrival_s = ready_s[from];
    if (here != there) {
      double& out_s = free_s[out_port(here)];
      double& in_s = free_s[in_port(there)];
      const double start = std::max({ready_s[from], out_s, in_s});
      out_s = start + n_bytes / rate(network, here);
      in_s = start + n_bytes / rate(network, there);
      const double duration_s = n_bytes / std::min(rate(network, here), rate(network, there));
      made.hops.push_back({here, there, start, duration_s, n_bytes});
      arrival_s = start + duration_s + network.latency_s;
      made.total_s = std::max(made.total_s, arrival_s);
    }
    ready_s[to] = std::max(ready_s[to], arrival_s);
  }
  made.relayed = made.hops.size() > 1;
}

void send_one_after_the_other(const Job& job, const Network& network, Passage& made) {
  double& now_s = made.total_s;
  const auto passed_s = [&](Host here, Host there, double n_bytes) {
    const double duration_s = n_bytes / std::min(rate(network, here), rate(network, there));
    made.hops.push_back({here, there, now_s, duration_s, n_bytes});
    return duration_s;
  };
  const auto whole = static_cast<double>(job.n_bytes);
  for (std::size_t i = 0; i + 1 < job.n_adders; ++i) {
    if (job.path[i] != next_adder(job, i)) {
      now_s += passed_s(job.path[i], next_adder(job, i), whole) + network.latency_s;
    }
  }
  const Host root = job.path[job.n_adders - 1];
  const std::vector<Host> followers(
      job.path.begin() + static_cast<std::ptrdiff_t>(job.n_adders), job.path.end());
  const auto n_followers = static_cast<double>(followers.size());
  const bool scatters = job.strategy == Strategy::global_allgather;
  bool crosses = false;
  for (std::size_t i = 0; i < followers.size(); ++i) {
    const bool gathers_locally =
        job.strategy == Strategy::local_allgather && i > 0 && followers[i] == followers[i - 1];
    if (followers[i] != root && !gathers_locally) {
      now_s += passed_s(root, followers[i], scatters ? whole / n_followers : whole);
      crosses = true;
    }
  }
  if (crosses) {
    now_s += network.latency_s;
  }
  double last_s = 0.0;
  for (std::size_t i = 0; scatters && i < followers.size(); ++i) {
    const Host neighbour = followers[(i + 1) % followers.size()];
    if (followers[i] != neighbour) {
      const double passed_on = whole * ((n_followers - 1) / n_followers);
      last_s = std::max(last_s, passed_s(followers[i], neighbour, passed_on) + network.latency_s);
    }
  }
  now_s += last_s;
}

std::vector<Use> each_hop(const std::vector<Hop>& hops, const Network& network) {
  std::vector<Use> uses;
  for (const Hop& hop : hops) {
    for (const std::size_t port : {out_port(hop.from), in_port(hop.to)}) {
      uses.push_back({port, hop.start_s, hop.start_s + hop.n_bytes / network.rates[port / 2]});
    }
  }
  // The hops of a port do not overlap.
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return std::tie(a.port, a.start_s) < std::tie(b.port, b.start_s);
  });
  return uses;
}

std::vector<Use> uses_of(const std::vector<Hop>& hops, const Network& network) {
  struct Span {
    double start_s;
    double stop_s;
    double own_s;  // the time of all its bytes at its own rate
  };
  std::map<std::size_t, Span> spans;
  for (const Hop& hop : hops) {
    for (const std::size_t port : {out_port(hop.from), in_port(hop.to)}) {
      const double own_s = hop.n_bytes / network.rates[port / 2];
      const auto [found, is_new] = spans.try_emplace(port, Span{hop.start_s, 0.0, 0.0});
      Span& span = found->second;
      span.start_s = std::min(span.start_s, hop.start_s);
      span.stop_s = std::max(span.stop_s, hop.start_s + own_s);
      span.own_s += own_s;
    }
  }
  std::vector<Use> uses;
  for (const auto& [port, span] : spans) {
    uses.push_back({port, span.start_s, std::max(span.stop_s, span.start_s + span.own_s)});
  }
  return uses;
}

void require(bool claim, const std::string& message) {
  if (!claim) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

Passage passage(const Job& job, const Network& network) {
  Passage made{{}, {}, 0.0};
  if (job.strategy == Strategy::broadcast && job.n_chunks == 1) {
    relay(job, network, made);
    made.uses = each_hop(made.hops, network);
    return made;
  }
  if (job.strategy == Strategy::broadcast || job.strategy == Strategy::signal) {
    pipeline(job, network, made);
  } else {
    send_one_after_the_other(job, network, made);
  }
  made.uses = uses_of(made.hops, network);
  return made;
}

std::vector<std::size_t> binomial_tree(std::size_t n_adders, std::size_t n_followers) {
  // Positions are counted from the root; the parent of each is the one without its highest bit.
  const auto parent = [](std::size_t place) {
    std::size_t bit = 1;
    while (2 * bit <= place) {
      bit *= 2;
    }
    return place - bit;
  };
  const std::size_t root = n_adders - 1;
  std::vector<std::size_t> tree;
  for (std::size_t i = 0; i < root; ++i) {
    tree.push_back(root - parent(root - i));
  }
  for (std::size_t i = 1; i <= n_followers; ++i) {
    tree.push_back(root + parent(i));
  }
  return tree;
}

double start_s(const Passage& passed, const std::vector<double>& free_s) {
  double start = 0.0;
  for (const Use& use : passed.uses) {
    start = std::max(start, free_s[use.port] - use.start_s);
  }
  return start;
}

void occupy(const Passage& passed, double at_s, std::vector<double>& free_s) {
  for (const Use& use : passed.uses) {
    free_s[use.port] = std::max(free_s[use.port], at_s + use.stop_s);
  }
}

void check(const Network& network) {
  require(network.rates.size() <= kMostHosts, "a network has at most " +
                                                  std::to_string(kMostHosts) + " hosts; got " +
                                                  std::to_string(network.rates.size()));
  for (const double value : network.rates) {
    require(value >= 1 / kExtreme && value <= kExtreme,
            "a rate must be from 1e-100 to 1e100 bytes per second; got " + std::to_string(value));
  }
  require(network.latency_s >= 0 && network.latency_s <= kExtreme,
          "a latency must be from 0 to 1e100 seconds; got " + std::to_string(network.latency_s));
}

void check(const Job& job, const Network& network) {
  require(job.n_bytes >= 0 && job.n_bytes < kMostBytes,
          "bytes must be from 0 to 2**62 - 1; got " + std::to_string(job.n_bytes));
  require(job.n_chunks >= 1,
          "there must be at least one chunk; got " + std::to_string(job.n_chunks));
  require(job.n_adders >= 1 && job.n_adders <= job.path.size(),
          "a path begins with those that add, or send; got " + std::to_string(job.n_adders) +
              " of them on a path of " + std::to_string(job.path.size()));
  if (!job.tree.empty()) {
    bool leads = job.strategy == Strategy::broadcast && job.n_chunks == 1 &&
                 job.tree.size() + 1 == job.path.size();
    for (std::size_t i = 0; leads && i < job.tree.size(); ++i) {
      const bool adds = i + 1 < job.n_adders;
      leads = adds ? job.tree[i] > i && job.tree[i] < job.n_adders
                   : job.tree[i] + 1 >= job.n_adders && job.tree[i] <= i;
    }
    require(leads, "a tree is of a broadcast in one chunk, and leads to the last adder and from it");
  }
  for (const Host host : job.path) {
    require(host >= 0 && static_cast<std::size_t>(host) < network.rates.size(),
            "every host needs a rate; got none for host " + std::to_string(host));
  }
}

}  // namespace crossmesh
