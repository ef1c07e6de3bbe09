// In which order: a randomized greedy search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// Times within this of each other are equal: rounding makes no order better [chosen: some thousand
/// roundings of a double].
constexpr double kBelow = 1 - 1e-12;

/// An order, and when the last of it ends.
struct Order {
  double end_s;
  std::vector<std::size_t> indices;
};

/// How long each port is in use by all passages together.
std::vector<double> port_loads_s(const std::vector<Passage>& passages, std::size_t n_ports);

/// Before this no order of the passages ends: the busiest port is busy that long, and some send
/// must bring the bytes to it before and carry them on after.
double floor_s(const std::vector<Passage>& passages, std::size_t n_ports);

/// Starts, again and again, the send that can start first; of several, the one that has the port
/// with most left to do. Then retries with part of that weight, and equals, left to luck, as long
/// as `steps` last and the floor is not reached.
///
/// This is the "Greedy Search with Randomization" of section 3.2 (Zhuang et al., MLSys 2023) for
/// sends of different sizes: theirs fills rounds, in which the longest makes all others wait, with
/// as many devices as it can; ports that no round may leave idle are not favoured.
///
/// Sends along one path form a lane, of which only the next is looked at, the longest first. A try
/// counts as many steps as there are sends times ports of lanes, which is more than it takes: after
/// each send only lanes that share a port with it are looked at again, through a tournament. If
/// even the first try would take more than `steps`, every lane runs in one go.
///
/// The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with the given seed: equal
/// arguments give equal orders on every machine.
Order greedy(const std::vector<Passage>& passages, const std::vector<std::vector<Host>>& paths,
             std::size_t n_ports, std::uint64_t seed, std::int64_t steps);

}  // namespace crossmesh
