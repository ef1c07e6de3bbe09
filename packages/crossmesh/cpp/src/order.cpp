#include "crossmesh/order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace crossmesh {
namespace {

using Order = std::vector<std::size_t>;

// Random passes a round, and jobs looked at by all of them together, which bounds the time of
// large transfers to some tens of milliseconds. Both [chosen]; reference.py has the same.
constexpr int kPasses = 16;
constexpr std::int64_t kBudget = std::int64_t{1} << 22;
constexpr std::uint64_t kSeed = 2023;

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): unlike std::shuffle, the same everywhere.
class SplitMix64 {
 public:
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  void shuffle(Order& order) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(next() % i)]);
    }
  }

 private:
  std::uint64_t state_ = kSeed;
};

// Jobs with their ports renumbered from zero, so that port tables are plain vectors.
struct DenseJobs {
  std::vector<std::vector<std::size_t>> ports;
  std::size_t n_ports;
};

DenseJobs densify(const std::vector<OldJob>& jobs) {
  std::vector<std::int64_t> names;
  for (const OldJob& job : jobs) {
    if (!std::isfinite(job.duration_s) || job.duration_s < 0) {
      throw std::invalid_argument("a duration must be finite and not negative; got " +
                                  std::to_string(job.duration_s));
    }
    if (job.n_devices < 0) {
      throw std::invalid_argument("a number of devices must not be negative; got " +
                                  std::to_string(job.n_devices));
    }
    names.insert(names.end(), job.ports.begin(), job.ports.end());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());

  DenseJobs dense{{}, names.size()};
  for (const OldJob& job : jobs) {
    std::vector<std::size_t> ports;
    for (const std::int64_t port : job.ports) {
      const auto place = std::lower_bound(names.begin(), names.end(), port);
      ports.push_back(static_cast<std::size_t>(place - names.begin()));
    }
    dense.ports.push_back(std::move(ports));
  }
  return dense;
}

double finish_s(const std::vector<OldJob>& jobs, const DenseJobs& dense, const Order& order) {
  std::vector<double> free_s(dense.n_ports, 0.0);
  double last_s = 0.0;
  for (const std::size_t job : order) {
    double start_s = 0.0;
    for (const std::size_t port : dense.ports[job]) {
      start_s = std::max(start_s, free_s[port]);
    }
    const double stop_s = start_s + jobs[job].duration_s;
    for (const std::size_t port : dense.ports[job]) {
      free_s[port] = stop_s;
    }
    last_s = std::max(last_s, stop_s);
  }
  return last_s;
}

// The jobs of `candidates` that share no port with those taken before them.
std::pair<Order, double> take_disjoint(const std::vector<OldJob>& jobs, const DenseJobs& dense,
                                       const Order& candidates) {
  std::vector<char> busy(dense.n_ports, 0);
  std::pair<Order, double> taken{{}, 0.0};
  for (const std::size_t job : candidates) {
    const auto& ports = dense.ports[job];
    if (std::any_of(ports.begin(), ports.end(), [&](std::size_t port) { return busy[port]; })) {
      continue;
    }
    for (const std::size_t port : ports) {
      busy[port] = 1;
    }
    taken.first.push_back(job);
    taken.second += static_cast<double>(jobs[job].n_devices);
  }
  return taken;
}

Order greedy_rounds(const std::vector<OldJob>& jobs, const DenseJobs& dense, Order remaining) {
  SplitMix64 random;
  std::int64_t budget = kBudget;
  Order order;
  while (!remaining.empty()) {
    auto best = take_disjoint(jobs, dense, remaining);
    const auto size = static_cast<std::int64_t>(remaining.size());
    for (int pass = 0; pass < kPasses && budget >= size; ++pass) {
      if (best.first.size() == remaining.size()) {
        break;
      }
      budget -= size;
      Order shuffled = remaining;
      random.shuffle(shuffled);
      auto candidate = take_disjoint(jobs, dense, shuffled);
      if (candidate.second > best.second) {
        best = std::move(candidate);
      }
    }
    std::vector<char> done(jobs.size(), 0);
    for (const std::size_t job : best.first) {
      done[job] = 1;
      order.push_back(job);
    }
    remaining.erase(std::remove_if(remaining.begin(), remaining.end(),
                                   [&](std::size_t job) { return done[job]; }),
                    remaining.end());
  }
  return order;
}

}  // namespace

double finish_s(const std::vector<OldJob>& jobs, const Order& order) {
  std::vector<char> seen(jobs.size(), 0);
  bool complete = order.size() == jobs.size();
  for (std::size_t i = 0; complete && i < order.size(); ++i) {
    complete = order[i] < jobs.size() && !seen[order[i]];
    if (complete) {
      seen[order[i]] = 1;
    }
  }
  if (!complete) {
    throw std::invalid_argument("an order names every job exactly once; got " +
                                std::to_string(order.size()) + " entries for " +
                                std::to_string(jobs.size()) + " jobs");
  }
  return finish_s(jobs, densify(jobs), order);
}

std::vector<std::size_t> order_jobs(const std::vector<OldJob>& jobs) {
  const DenseJobs dense = densify(jobs);
  Order longest_first(jobs.size());
  std::iota(longest_first.begin(), longest_first.end(), std::size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(), [&](std::size_t a, std::size_t b) {
    return jobs[a].duration_s > jobs[b].duration_s;
  });
  Order rounds = greedy_rounds(jobs, dense, longest_first);
  const bool rounds_end_later =
      finish_s(jobs, dense, rounds) > finish_s(jobs, dense, longest_first);
  return rounds_end_later ? longest_first : rounds;
}

}  // namespace crossmesh
