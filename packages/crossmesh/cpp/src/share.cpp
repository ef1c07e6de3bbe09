#include "crossmesh/share.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace crossmesh {
namespace {

// The flow network: source, demands, hosts, sink. Arcs come in pairs: arc ^ 1 is the reverse arc.
class Flows {
 public:
  Flows(const std::vector<Demand>& demands, const std::vector<std::int64_t>& room)
      : demands_(demands),
        source_(demands.size() + room.size()),
        sink_(source_ + 1),
        arcs_(sink_ + 1) {
    for (std::size_t i = 0; i < demands.size(); ++i) {
      for (const Host host : demands[i].hosts) {
        add(i, host_node(host), demands[i].most);
      }
    }
    for (std::size_t i = 0; i < demands.size(); ++i) {
      add(source_, i, demands[i].n_bytes);
      needed_ += demands[i].n_bytes;
    }
    for (std::size_t host = 0; host < room.size(); ++host) {
      add(demands.size() + host, sink_, room[host]);
    }
  }

  // Whether the flow carries all demands.
  bool carries_all() {
    std::int64_t total = 0;
    while (measure()) {
      tried_.assign(arcs_.size(), 0);
      total += push(source_, needed_);
    }
    return total == needed_;
  }

  std::vector<std::vector<std::int64_t>> shares() const {
    std::vector<std::vector<std::int64_t>> result;
    std::size_t arc = 1;
    for (const Demand& demand : demands_) {
      auto& share = result.emplace_back();
      for (std::size_t k = 0; k < demand.hosts.size(); ++k, arc += 2) {
        share.push_back(left_[arc]);
      }
    }
    return result;
  }

  // Whether a node is on the source's side of the minimum cut: a demand that is not met, a host
  // without capacity left.
  bool short_of(std::size_t demand) const { return depth_[demand] >= 0; }
  bool busy(Host host) const { return depth_[host_node(host)] >= 0; }

 private:
  std::size_t host_node(Host host) const {
    return demands_.size() + static_cast<std::size_t>(host);
  }

  void add(std::size_t from, std::size_t to, std::int64_t capacity) {
    arcs_[from].push_back(to_.size());
    arcs_[to].push_back(to_.size() + 1);
    to_.insert(to_.end(), {to, from});
    left_.insert(left_.end(), {capacity, 0});
  }

  // Measures distances from the source over arcs with capacity left; returns whether the sink can
  // be reached.
  bool measure() {
    depth_.assign(arcs_.size(), -1);
    depth_[source_] = 0;
    std::vector<std::size_t> queue = {source_};
    for (std::size_t at = 0; at < queue.size(); ++at) {
      for (const std::size_t arc : arcs_[queue[at]]) {
        if (left_[arc] > 0 && depth_[to_[arc]] < 0) {
          depth_[to_[arc]] = depth_[queue[at]] + 1;
          queue.push_back(to_[arc]);
        }
      }
    }
    return depth_[sink_] >= 0;
  }

  std::int64_t push(std::size_t node, std::int64_t limit) {
    if (node == sink_) {
      return limit;
    }
    std::int64_t sent = 0;
    for (std::size_t& next = tried_[node]; next < arcs_[node].size(); ++next) {
      const std::size_t arc = arcs_[node][next];
      if (left_[arc] > 0 && depth_[to_[arc]] == depth_[node] + 1) {
        const std::int64_t passed = push(to_[arc], std::min(limit - sent, left_[arc]));
        left_[arc] -= passed;
        left_[arc ^ 1] += passed;
        sent += passed;
        if (sent == limit) {
          break;  // this arc may have capacity left
        }
      }
    }
    return sent;
  }

  const std::vector<Demand>& demands_;
  std::size_t source_;
  std::size_t sink_;
  std::int64_t needed_ = 0;
  std::vector<std::vector<std::size_t>> arcs_;
  std::vector<std::size_t> to_;
  std::vector<std::int64_t> left_;
  std::vector<int> depth_;
  std::vector<std::size_t> tried_;
};

}  // namespace

std::pair<double, std::vector<std::vector<std::int64_t>>> level(
    const std::vector<Demand>& demands, const std::vector<std::int64_t>& base,
    const std::vector<double>& rates) {
  std::int64_t everything = 0;
  for (const Demand& demand : demands) {
    everything += demand.n_bytes;
  }
  double total_rate = 0.0;
  double time_s = 0.0;
  for (std::size_t host = 0; host < rates.size(); ++host) {
    everything += base[host];
    total_rate += rates[host];
    time_s = std::max(time_s, static_cast<double>(base[host]) / rates[host]);
  }
  const auto everything_real = static_cast<double>(everything);
  time_s = std::max(time_s, everything_real / total_rate);
  while (true) {
    std::vector<std::int64_t> room;
    for (std::size_t host = 0; host < rates.size(); ++host) {
      const double sendable = std::ceil(std::min(time_s * rates[host], everything_real));
      room.push_back(std::max<std::int64_t>(
          0, std::min(static_cast<std::int64_t>(sendable), everything) - base[host]));
    }
    Flows flows(demands, room);
    if (flows.carries_all()) {
      return {time_s, flows.shares()};
    }
    std::int64_t stuck = 0;
    for (std::size_t i = 0; i < demands.size(); ++i) {
      if (flows.short_of(i)) {
        stuck += demands[i].n_bytes;
        for (const Host host : demands[i].hosts) {
          stuck -= flows.busy(host) ? 0 : demands[i].most;
        }
      }
    }
    double busy_rate = 0.0;
    for (std::size_t host = 0; host < rates.size(); ++host) {
      if (flows.busy(static_cast<Host>(host))) {
        stuck += base[host];
        busy_rate += rates[host];
      }
    }
    // T must grow in spite of rounding.
    time_s = std::max(static_cast<double>(stuck) / busy_rate, time_s * (1 + 0x1p-40));
  }
}

}  // namespace crossmesh
