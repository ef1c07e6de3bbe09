// When each port is free, while sends are scheduled one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// The ports of a network and the sends that they serve; each send begins as early as the sends
/// before it allow.
///
/// A port serves sends in the order in which they are scheduled. Only relayed sends leave it idle
/// between their hops. Later sends may use it meanwhile, and a relayed send may use the idle time
/// between the hops of others.
class Ports {
 public:
  explicit Ports(std::size_t n_ports) : free_s_(n_ports, 0.0), taken_(n_ports) {}

  /// The earliest start at which every port is free when the passage reaches it.
  double start_s(const Passage& passed) const;

  /// The same for the uses of a passage, as long as nothing is relayed.
  double start_s(const Use* begin, const Use* end) const {
    double start = 0.0;
    for (const Use* use = begin; use != end; ++use) {
      start = std::max(start, free_s_[use->port] - use->start_s);
    }
    return start;
  }

  /// Records that a passage starts at `at_s`.
  void occupy(const Passage& passed, double at_s);

 private:
  std::vector<double> free_s_;  // when sends that are not relayed free each port
  std::vector<std::vector<std::pair<double, double>>> taken_;  // relayed sends' spans, ascending
  bool relays_ = false;
};

}  // namespace crossmesh
