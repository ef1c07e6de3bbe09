#include "crossmesh/depth_first.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "crossmesh/greedy.hpp"

namespace crossmesh {
namespace {

// This also limits the depth of the recursion.
constexpr std::size_t kMostSends = 256;
constexpr double kNever = std::numeric_limits<double>::infinity();

class Tree {
 public:
  Tree(const std::vector<Class>& classes, std::size_t n_ports, double best_s, std::int64_t steps)
      : classes_(classes),
        n_ports_(n_ports),
        best_s_(best_s),
        steps_(steps),
        tail_s_(n_ports, kNever),
        done_(classes.size(), 0) {
    for (const Class& group : classes) {
      n_sends_ += group.sends.size();
      std::vector<double> needs_s(n_ports, kNever);
      for (const Passage& passed : group.ways) {
        std::vector<double> mine_s(n_ports, 0.0);
        for (const Use& use : passed.uses) {
          mine_s[use.port] = use.stop_s - use.start_s;
          tail_s_[use.port] = std::min(tail_s_[use.port], passed.total_s - use.stop_s);
        }
        for (std::size_t port = 0; port < n_ports; ++port) {
          needs_s[port] = std::min(needs_s[port], mine_s[port]);
        }
      }
      needs_s_.push_back(std::move(needs_s));
    }
  }

  std::optional<Found> search() {
    if (n_sends_ > kMostSends) {
      return std::nullopt;
    }
    std::vector<double> left_s(n_ports_, 0.0);
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      for (std::size_t port = 0; port < n_ports_; ++port) {
        left_s[port] += static_cast<double>(classes_[i].sends.size()) * needs_s_[i][port];
      }
    }
    descend(std::vector<double>(n_ports_, 0.0), left_s, 0.0, 0.0);
    return std::move(best_);
  }

 private:
  // When each port is free and how much work it has left; the last start and the last end so far.
  void descend(const std::vector<double>& free_s, const std::vector<double>& left_s, double now_s,
               double end_s) {
    steps_ -= static_cast<std::int64_t>(n_ports_);
    double bound_s = end_s;
    for (std::size_t port = 0; port < n_ports_; ++port) {
      if (left_s[port] > 0) {
        bound_s = std::max(bound_s, free_s[port] + left_s[port] + tail_s_[port]);
      }
    }
    if (bound_s >= best_s_ * kBelow) {
      return;
    }
    if (taken_.size() == n_sends_) {
      best_s_ = end_s;
      best_ = Found{end_s, taken_};
      return;
    }

    std::vector<std::tuple<double, double, std::size_t, std::size_t>> children;
    double first_start_s = kNever;
    double first_end_s = kNever;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const auto& ways = classes_[i].ways;
      for (std::size_t k = 0; done_[i] < classes_[i].sends.size() && k < ways.size(); ++k) {
        steps_ -= 1 + static_cast<std::int64_t>(ways[k].uses.size());
        const double at_s = start_s(ways[k], free_s);
        double busiest_s = 0.0;
        for (const Use& use : ways[k].uses) {
          busiest_s = std::max(busiest_s, left_s[use.port]);
        }
        children.emplace_back(at_s, -busiest_s, i, k);
        first_start_s = std::min(first_start_s, at_s);
        first_end_s = std::min(first_end_s, at_s + ways[k].total_s);
      }
    }
    std::sort(children.begin(), children.end());
    for (const auto& [at_s, weight, i, k] : children) {
      if (steps_ <= 0) {
        return;
      }
      if (at_s < now_s || (at_s > first_start_s && at_s >= first_end_s)) {
        continue;
      }
      const Passage& passed = classes_[i].ways[k];
      std::vector<double> free = free_s;
      occupy(passed, at_s, free);
      std::vector<double> left = left_s;
      for (std::size_t port = 0; port < n_ports_; ++port) {
        left[port] -= needs_s_[i][port];
      }
      taken_.push_back({classes_[i].sends[done_[i]++], k});
      descend(free, left, at_s, std::max(end_s, at_s + passed.total_s));
      taken_.pop_back();
      --done_[i];
    }
  }

  const std::vector<Class>& classes_;
  std::size_t n_ports_;
  double best_s_;
  std::int64_t steps_;
  std::vector<std::vector<double>> needs_s_;  // of each class, the least time on each port
  std::vector<double> tail_s_;                // of each port, the least time from there to the end
  std::size_t n_sends_ = 0;
  std::vector<std::size_t> done_;
  std::vector<Step> taken_;
  std::optional<Found> best_;
};

}  // namespace

std::optional<Found> depth_first(const std::vector<Class>& classes, std::size_t n_ports,
                                 double best_s, std::int64_t steps) {
  return Tree(classes, n_ports, best_s, steps).search();
}

}  // namespace crossmesh
