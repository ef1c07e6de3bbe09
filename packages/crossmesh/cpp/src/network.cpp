#include "crossmesh/network.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

namespace crossmesh {
namespace {

// The flow through hosts is searched recursively (share.cpp), as deep as there are hosts.
constexpr std::size_t kMostHosts = 16384;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

std::size_t out_port(Host host) { return 2 * static_cast<std::size_t>(host); }
std::size_t in_port(Host host) { return out_port(host) + 1; }

double rate(const Network& network, Host host) {
  return network.rates[static_cast<std::size_t>(host)];
}

void pipeline(const Job& job, const Network& network, Passage& made) {
  const auto n_bytes = static_cast<double>(
      job.strategy == Strategy::signal ? std::min<std::int64_t>(job.n_bytes, 1) : job.n_bytes);
  std::map<std::size_t, int> times;
  double duration_s = 0.0;
  for (std::size_t i = 0; i + 1 < job.path.size(); ++i) {
    const Host here = job.path[i];
    const Host there = job.path[i + 1];
    duration_s = std::max(duration_s, ++times[out_port(here)] * n_bytes / rate(network, here));
    duration_s = std::max(duration_s, ++times[in_port(there)] * n_bytes / rate(network, there));
  }
  const double step_s = duration_s / static_cast<double>(job.n_chunks) + network.latency_s;
  for (std::size_t i = 0; i + 1 < job.path.size(); ++i) {
    made.hops.push_back({job.path[i], job.path[i + 1], static_cast<double>(i) * step_s, duration_s,
                         n_bytes});
  }
  if (!made.hops.empty()) {
    made.total_s = made.hops.back().start_s + duration_s + network.latency_s;
  }
}

void send_one_after_the_other(const Job& job, const Network& network, Passage& made) {
  double& now_s = made.total_s;
  const auto passed_s = [&](Host here, Host there, double n_bytes) {
    const double duration_s = n_bytes / std::min(rate(network, here), rate(network, there));
    made.hops.push_back({here, there, now_s, duration_s, n_bytes});
    return duration_s;
  };
  const auto whole = static_cast<double>(job.n_bytes);
  const std::size_t root = job.n_adders - 1;
  for (std::size_t i = 0; i < root; ++i) {
    now_s += passed_s(job.path[i], job.path[i + 1], whole) + network.latency_s;
  }
  const std::vector<Host> receivers(job.path.begin() + static_cast<std::ptrdiff_t>(root) + 1,
                                    job.path.end());
  const std::vector<std::int64_t> devices(
      job.devices.begin() + static_cast<std::ptrdiff_t>(root) + 1, job.devices.end());
  const auto n_devices =
      static_cast<double>(std::accumulate(devices.begin(), devices.end(), std::int64_t{0}));
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    double n_bytes = whole;
    if (job.strategy == Strategy::send_recv) {
      n_bytes *= static_cast<double>(devices[i]);
    } else if (job.strategy == Strategy::global_allgather) {
      n_bytes *= static_cast<double>(devices[i]) / n_devices;
    }
    now_s += passed_s(job.path[root], receivers[i], n_bytes);
  }
  if (!receivers.empty()) {
    now_s += network.latency_s;
  }
  if (job.strategy == Strategy::global_allgather && receivers.size() > 1) {
    const double passed_on = whole * ((n_devices - 1) / n_devices);
    double last_s = 0.0;
    for (std::size_t i = 0; i < receivers.size(); ++i) {
      const Host neighbour = receivers[(i + 1) % receivers.size()];
      last_s = std::max(last_s, passed_s(receivers[i], neighbour, passed_on));
    }
    now_s += last_s + network.latency_s;
  }
}

std::vector<Use> uses_of(const std::vector<Hop>& hops) {
  std::vector<Use> uses;
  for (const Hop& hop : hops) {
    for (const std::size_t port : {out_port(hop.from), in_port(hop.to)}) {
      uses.push_back({port, hop.start_s, hop.start_s + hop.duration_s});
    }
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.port < b.port; });
  std::size_t kept = 0;
  for (const Use& use : uses) {
    if (kept > 0 && uses[kept - 1].port == use.port) {
      uses[kept - 1].start_s = std::min(uses[kept - 1].start_s, use.start_s);
      uses[kept - 1].stop_s = std::max(uses[kept - 1].stop_s, use.stop_s);
    } else {
      uses[kept++] = use;
    }
  }
  uses.resize(kept);
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
  if (job.strategy == Strategy::broadcast || job.strategy == Strategy::signal) {
    pipeline(job, network, made);
  } else {
    send_one_after_the_other(job, network, made);
  }
  made.uses = uses_of(made.hops);
  return made;
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
    require(std::isfinite(value) && value > 0,
            "a rate must be a positive number of bytes per second; got " + std::to_string(value));
  }
  require(std::isfinite(network.latency_s) && network.latency_s >= 0,
          "a latency must be finite and not negative; got " + std::to_string(network.latency_s));
}

void check(const Job& job, const Network& network) {
  require(job.n_bytes >= 0 && job.n_bytes < kMostBytes,
          "bytes must be from 0 to 2**62 - 1; got " + std::to_string(job.n_bytes));
  require(job.n_chunks >= 1,
          "there must be at least one chunk; got " + std::to_string(job.n_chunks));
  require(job.n_adders >= 1 && job.n_adders <= job.path.size() &&
              job.devices.size() == job.path.size(),
          "a path begins with those that add and counts devices at each host; got " +
              std::to_string(job.path.size()) + " hosts, " + std::to_string(job.n_adders) +
              " that add and " + std::to_string(job.devices.size()) + " counts");
  for (std::size_t i = 0; i < job.path.size(); ++i) {
    const Host host = job.path[i];
    require(host >= 0 && static_cast<std::size_t>(host) < network.rates.size(),
            "every host needs a rate; got none for host " + std::to_string(host));
    require(i == 0 || job.path[i - 1] != host,
            "a path never stays on a host; got " + std::to_string(host) + " twice in a row");
    const bool receives = i >= job.n_adders;
    require(job.devices[i] >= (receives ? 1 : 0) &&
                job.devices[i] <= std::numeric_limits<std::int32_t>::max(),
            "a host that receives has 1 to 2**31 - 1 devices that do; got " +
                std::to_string(job.devices[i]));
  }
}

}  // namespace crossmesh
