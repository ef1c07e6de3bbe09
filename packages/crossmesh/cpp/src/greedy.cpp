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
  std::size_t group = 0;
};

// The priority of a lane: the lane with the least key is next.
using Key = std::tuple<double, double, std::size_t>;

constexpr Key kNever = {std::numeric_limits<double>::infinity(), 0.0, 0};

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

  const Key& key(std::size_t i) const { return keys_[i]; }

 private:
  std::size_t winner(std::size_t node) const {
    const std::size_t a = winners_[2 * node];
    const std::size_t b = winners_[2 * node + 1];
    return b == keys_.size() || (a != keys_.size() && keys_[a] <= keys_[b]) ? a : b;
  }

  std::vector<Key> keys_;
  std::size_t leaves_ = 1;
  std::vector<std::size_t> winners_;  // keys_.size() stands for no winner
};

// The next send of each lane. Its uses are copied to where those of the lanes of its group are.
class Heads {
 public:
  Heads(const std::vector<Passage>& passages, const std::vector<Lane>& lanes,
        const std::vector<Indices>& groups)
      : passages_(passages), lanes_(lanes), spans_(lanes.size()) {
    for (const Indices& group : groups) {
      for (const std::size_t i : group) {
        std::size_t most = 0;
        for (const std::size_t send : lanes[i].sends) {
          most = std::max(most, passages[send].uses.size());
        }
        spans_[i] = {uses_.size(), 0, lanes[i].sends.size()};
        uses_.resize(uses_.size() + most);
        place(i);
      }
    }
  }

  std::size_t n_waiting(std::size_t lane) const { return spans_[lane].n_waiting; }
  std::size_t send(std::size_t lane) const {
    return lanes_[lane].sends[spans_[lane].n_waiting - 1];
  }
  const Passage& passage(std::size_t lane) const { return passages_[send(lane)]; }
  const Use* begin(std::size_t lane) const { return uses_.data() + spans_[lane].begin; }
  const Use* end(std::size_t lane) const { return begin(lane) + spans_[lane].size; }

  void advance(std::size_t lane) {
    --spans_[lane].n_waiting;
    if (spans_[lane].n_waiting > 0) {
      place(lane);
    }
  }

 private:
  struct Span {
    std::size_t begin;
    std::size_t size;
    std::size_t n_waiting;
  };

  void place(std::size_t lane) {
    const std::vector<Use>& uses = passage(lane).uses;
    spans_[lane].size = uses.size();
    std::copy(uses.begin(), uses.end(),
              uses_.begin() + static_cast<std::ptrdiff_t>(spans_[lane].begin));
  }

  const std::vector<Passage>& passages_;
  const std::vector<Lane>& lanes_;
  std::vector<Span> spans_;
  std::vector<Use> uses_;
};

// A group has the lanes that share one port, for each lane the port that most lanes use. As sends are
// started, the key of a lane that waits can only rise. So the least key of a group, once found, is a
// lower bound of its keys until one of its own lanes starts a send, and only the group with the
// least bound is looked through again.
class Lanes {
 public:
  Lanes(const std::vector<Passage>& passages, const std::vector<std::vector<Host>>& paths,
        std::size_t n_ports)
      : passages_(passages), loads_s_(port_loads_s(passages, n_ports)) {
    std::map<std::vector<Host>, std::size_t> number;
    std::vector<Indices> ports;  // of each lane
    Indices n_lanes(n_ports, 0);  // on each port
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const auto [found, is_new] = number.emplace(paths[i], lanes_.size());
      if (is_new) {
        lanes_.emplace_back();
        ports.emplace_back();
        for (const Use& use : passages[i].uses) {
          if (ports.back().empty() || ports.back().back() != use.port) {
            ports.back().push_back(use.port);
            ++n_lanes[use.port];
          }
        }
      }
      lanes_[found->second].sends.push_back(i);
    }
    std::size_t lane_steps = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      lane_steps += 1 + ports[i].size();
      auto& sends = lanes_[i].sends;
      std::sort(sends.begin(), sends.end(), [&](std::size_t a, std::size_t b) {
        return passages[a].total_s != passages[b].total_s
                   ? passages[a].total_s < passages[b].total_s
                   : a > b;
      });
    }
    steps_ = static_cast<std::int64_t>(passages.size() * lane_steps);
    relays_ = std::any_of(passages.begin(), passages.end(),
                          [](const Passage& passed) { return passed.relayed; });
    std::map<std::size_t, std::size_t> group_of;  // by port; n_ports stands for no port
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      std::size_t most = n_ports;
      for (const std::size_t port : ports[i]) {
        most = most == n_ports || n_lanes[port] > n_lanes[most] ? port : most;
      }
      lanes_[i].group = group_of.emplace(most, groups_.size()).first->second;
      if (lanes_[i].group == groups_.size()) {
        groups_.emplace_back();
      }
      groups_[lanes_[i].group].push_back(i);
    }
  }

  std::size_t size() const { return lanes_.size(); }

  // The most steps of one try.
  std::int64_t steps() const { return steps_; }

  Order dispatch(bool whole_lanes, const Indices& rank, const std::vector<double>& luck) const {
    std::vector<double> left_s = loads_s_;
    Ports free(loads_s_.size());
    std::vector<Indices> waiting = groups_;
    Heads heads(passages_, lanes_, groups_);
    const auto key_of = [&](std::size_t i) {
      double busiest_s = 0.0;
      for (auto use = heads.begin(i); use != heads.end(i); ++use) {
        busiest_s = std::max(busiest_s, left_s[use->port]);
      }
      const double at_s = relays_ ? free.start_s(heads.passage(i))
                                  : free.start_s(heads.begin(i), heads.end(i));
      return Key{at_s, -busiest_s * luck[i], rank[i]};
    };
    Tournament next(groups_.size());
    Indices first_lane(groups_.size(), 0);
    const bool in_order = std::is_sorted(rank.begin(), rank.end());
    // Finds the lane of a group with the least key, which is not below `bound`. If lanes are in the
    // order of their ranks, the first one that equals the bound but for its rank is this lane.
    const auto look_through = [&](std::size_t group, const Key& bound) {
      Key least = kNever;
      for (const std::size_t i : waiting[group]) {
        const Key key = key_of(i);
        if (key < least) {
          least = key;
          first_lane[group] = i;
          if (in_order && std::get<0>(key) == std::get<0>(bound) &&
              std::get<1>(key) == std::get<1>(bound)) {
            break;
          }
        }
      }
      next.update(group, least);
    };
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      look_through(group, kNever);
    }
    Order order{0.0, {}};
    while (order.indices.size() < passages_.size()) {
      const std::size_t group = next.least();
      const std::size_t chosen = first_lane[group];
      const Key bound = next.key(group);
      if (key_of(chosen) != bound) {
        look_through(group, bound);
        continue;  // another group may be first now
      }
      for (std::size_t n = whole_lanes ? heads.n_waiting(chosen) : 1; n > 0; --n) {
        const Passage& passed = heads.passage(chosen);
        const double at_s = free.start_s(passed);
        free.occupy(passed, at_s);
        for (const Use& use : passed.uses) {
          left_s[use.port] -= use.stop_s - use.start_s;
        }
        order.indices.push_back(heads.send(chosen));
        order.end_s = std::max(order.end_s, at_s + passed.total_s);
        heads.advance(chosen);
      }
      if (heads.n_waiting(chosen) == 0) {
        auto& lanes = waiting[group];
        lanes.erase(std::find(lanes.begin(), lanes.end(), chosen));
      }
      look_through(group, bound);
    }
    return order;
  }

 private:
  const std::vector<Passage>& passages_;
  std::vector<double> loads_s_;
  std::vector<Lane> lanes_;
  std::vector<Indices> groups_;
  std::int64_t steps_ = 0;
  bool relays_ = false;
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
