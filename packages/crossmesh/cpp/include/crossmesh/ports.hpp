// Which ports are free when, while sends are put one after the other.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// The ports of a network and the sends that they serve, each of which begins as early as the ones
/// before it allow.
///
/// A port serves sends in the order in which they come. Only relayed ones leave it idle between
/// their hops: what comes later may use it meanwhile, and so may they, between any others'.
class Ports {
 public:
  explicit Ports(std::size_t n_ports) : free_s_(n_ports, 0.0), taken_(n_ports) {}

  /// The earliest start at which every port is free when the passage comes to it.
  double start_s(const Passage& passed) const;

  /// Says that a passage starts at `at_s`.
  void occupy(const Passage& passed, double at_s);

 private:
  std::vector<double> free_s_;  // from sends that are not relayed
  std::vector<std::vector<std::pair<double, double>>> taken_;  // by relayed ones, rising
  bool relays_ = false;
};

}  // namespace crossmesh
