#include "crossmesh/greedy.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "crossmesh/ports.hpp"

namespace crossmesh {
namespace {

// The part of a lane's weight that is random in a retry [chosen: enough to swap two ports of which
// one has twice as much work as the other].
constexpr double kLuck = 0.5;

using Indices = std::vector<std::size_t>;

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Unlike std::shuffle, it gives the same order with every standard library.
  void shuffle(Indices& order) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(next() % i)]);
    }
  }

 private:
  std::uint64_t state_;
};

struct Lane {
  Indices sends;  // the next send is the last entry
  Indices ports;
};

// The priority of a lane: the lane with the least key is next.
using Key = std::tuple<double, double, std::size_t>;

// Finds the least of several keys, which may change: a tournament tree with the winner at the root.
class Tournament {
 public:
  explicit Tournament(std::size_t size) : keys_(size, kNever) {
    while (leaves_ < size) {
      leaves_ *= 2;
    }
    winners_.assign(2 * leaves_, size);
    for (std::size_t i = 0; i < size; ++i) {
      winners_[leaves_ + i] = i;
    }
    for (std::size_t node = leaves_ - 1; node > 0; --node) {
      winners_[node] = winner(node);
    }
  }

  std::size_t least() const { return winners_[1]; }

  void update(std::size_t i, const Key& key) {
    keys_[i] = key;
    for (std::size_t node = (leaves_ + i) / 2; node > 0; node /= 2) {
      winners_[node] = winner(node);
    }
  }

  void remove(std::size_t i) { update(i, kNever); }

 private:
  static constexpr Key kNever = {std::numeric_limits<double>::infinity(), 0.0, 0};

  std::size_t winner(std::size_t node) const {
    const std::size_t a = winners_[2 * node];
    const std::size_t b = winners_[2 * node + 1];
    return b == keys_.size() || (a != keys_.size() && keys_[a] <= keys_[b]) ? a : b;
  }

  std::vector<Key> keys_;
  std::size_t leaves_ = 1;
  std::vector<std::size_t> winners_;  // keys_.size() stands for no winner
};

class Lanes {
 public:
  Lanes(const std::vector<Passage>& passages, const std::vector<std::vector<Host>>& paths,
        std::size_t n_ports)
      : passages_(passages), loads_s_(port_loads_s(passages, n_ports)), on_port_(n_ports) {
    std::map<std::vector<Host>, std::size_t> number;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const auto [found, is_new] = number.emplace(paths[i], lanes_.size());
      if (is_new) {
        lanes_.emplace_back();
        for (const Use& use : passages[i].uses) {
          auto& ports = lanes_.back().ports;
          if (ports.empty() || ports.back() != use.port) {
            ports.push_back(use.port);
            on_port_[use.port].push_back(found->second);
          }
        }
      }
      lanes_[found->second].sends.push_back(i);
    }
    std::size_t lane_steps = 0;
    for (Lane& lane : lanes_) {
      lane_steps += 1 + lane.ports.size();
      std::sort(lane.sends.begin(), lane.sends.end(), [&](std::size_t a, std::size_t b) {
        return passages[a].total_s != passages[b].total_s
                   ? passages[a].total_s < passages[b].total_s
                   : a > b;
      });
    }
    steps_ = static_cast<std::int64_t>(passages.size() * lane_steps);
  }

  std::size_t size() const { return lanes_.size(); }

  // The most steps of one try.
  std::int64_t steps() const { return steps_; }

  Order dispatch(bool whole_lanes, const Indices& rank, const std::vector<double>& luck) const {
    std::vector<double> left_s = loads_s_;
    Ports free(loads_s_.size());
    Indices n_waiting;
    for (const Lane& lane : lanes_) {
      n_waiting.push_back(lane.sends.size());
    }
    Tournament next(lanes_.size());
    const auto enter = [&](std::size_t i) {
      if (n_waiting[i] == 0) {
        return next.remove(i);
      }
      double busiest_s = 0.0;
      for (const std::size_t port : lanes_[i].ports) {
        busiest_s = std::max(busiest_s, left_s[port]);
      }
      const Passage& passed = passages_[lanes_[i].sends[n_waiting[i] - 1]];
      next.update(i, {free.start_s(passed), -busiest_s * luck[i], rank[i]});
    };
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      enter(i);
    }

    Order order{0.0, {}};
    Indices entered(lanes_.size(), 0);  // the last round in which each lane was entered
    for (std::size_t round = 1; order.indices.size() < passages_.size(); ++round) {
      const std::size_t chosen = next.least();
      const Lane& lane = lanes_[chosen];
      for (std::size_t n = whole_lanes ? n_waiting[chosen] : 1; n > 0; --n) {
        const std::size_t send = lane.sends[--n_waiting[chosen]];
        const Passage& passed = passages_[send];
        const double at_s = free.start_s(passed);
        free.occupy(passed, at_s);
        for (const Use& use : passed.uses) {
          left_s[use.port] -= use.stop_s - use.start_s;
        }
        order.indices.push_back(send);
        order.end_s = std::max(order.end_s, at_s + passed.total_s);
      }
      enter(chosen);
      entered[chosen] = round;
      for (const std::size_t port : lane.ports) {
        for (const std::size_t i : on_port_[port]) {
          if (entered[i] != round) {
            entered[i] = round;
            enter(i);
          }
        }
      }
    }
    return order;
  }

 private:
  const std::vector<Passage>& passages_;
  std::vector<double> loads_s_;
  std::vector<Indices> on_port_;
  std::vector<Lane> lanes_;
  std::int64_t steps_ = 0;
};

}  // namespace

std::vector<double> port_loads_s(const std::vector<Passage>& passages, std::size_t n_ports) {
  std::vector<double> loads_s(n_ports, 0.0);
  for (const Passage& passed : passages) {
    for (const Use& use : passed.uses) {
      loads_s[use.port] += use.stop_s - use.start_s;
    }
  }
  return loads_s;
}

double floor_s(const std::vector<Passage>& passages, std::size_t n_ports) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const std::vector<double> loads_s = port_loads_s(passages, n_ports);
  std::vector<double> head_s(n_ports, never);
  std::vector<double> tail_s(n_ports, never);
  double floor = 0.0;
  for (const Passage& passed : passages) {
    floor = std::max(floor, passed.total_s);
    for (const Use& use : passed.uses) {
      head_s[use.port] = std::min(head_s[use.port], use.start_s);
      tail_s[use.port] = std::min(tail_s[use.port], passed.total_s - use.stop_s);
    }
  }
  for (std::size_t port = 0; port < n_ports; ++port) {
    if (loads_s[port] > 0) {
      floor = std::max(floor, head_s[port] + loads_s[port] + tail_s[port]);
    }
  }
  return floor;
}

Order greedy(const std::vector<Passage>& passages, const std::vector<std::vector<Host>>& paths,
             std::size_t n_ports, std::uint64_t seed, std::int64_t steps) {
  const Lanes lanes(passages, paths, n_ports);
  const double goal_s = floor_s(passages, n_ports) / kBelow;
  SplitMix64 random(seed);
  Indices rank(lanes.size());
  std::iota(rank.begin(), rank.end(), std::size_t{0});
  Order best = lanes.dispatch(lanes.steps() > steps, rank, std::vector<double>(lanes.size(), 1.0));
  const std::int64_t tries = steps / std::max<std::int64_t>(lanes.steps(), 1);
  for (std::int64_t i = 1; i < tries && best.end_s > goal_s; ++i) {
    std::iota(rank.begin(), rank.end(), std::size_t{0});
    random.shuffle(rank);
    std::vector<double> luck;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      luck.push_back(1.0 - kLuck * random.fraction());
    }
    Order found = lanes.dispatch(false, rank, luck);
    if (found.end_s < best.end_s * kBelow) {
      best = std::move(found);
    }
  }
  return best;
}

}  // namespace crossmesh
