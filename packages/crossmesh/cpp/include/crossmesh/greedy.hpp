// The order of sends: a randomized greedy search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// A time is earlier than another one only if it is below this part of it, so that rounding makes
/// no order better [chosen: some thousand roundings of a double].
constexpr double kBelow = 1 - 1e-12;

/// An order of sends, and when the last of them ends.
struct Order {
  double end_s;
  std::vector<std::size_t> indices;
};

/// How long all passages together use each port.
std::vector<double> port_loads_s(const std::vector<Passage>& passages, std::size_t n_ports);

/// A lower bound of the end of every order of the passages: some port is busy for this long in
/// total, and before that a send must bring the first bytes to it, and after that carry the last
/// ones on.
double floor_s(const std::vector<Passage>& passages, std::size_t n_ports);

/// Repeatedly starts the send that can start first; of several, the one with the port that has the
/// most work left. Then retries with this weight and the choice among equals partly random, as long
/// as `steps` last and the floor is not reached.
///
/// This is the "Greedy Search with Randomization" of section 3.2 (Zhuang et al., MLSys 2023) for
/// sends of different sizes. The paper's search fills rounds with as many devices as it can, and in
/// a round the longest send makes all others wait; it does not favour ports that no round may leave
/// idle.
///
/// Sends along one path form a lane, of which only the next send is considered, the longest first.
/// A try counts as many steps as there are sends times ports of lanes. That is more than it takes:
/// after each send, only lanes that share a port with it are updated, through a tournament. If even
/// the first try would count more than `steps`, all sends of a lane are started together.
///
/// The random generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with this seed: equal
/// arguments give equal orders on every machine.
Order greedy(const std::vector<Passage>& passages, const std::vector<std::vector<Host>>& paths,
             std::size_t n_ports, std::uint64_t seed, std::int64_t steps);

}  // namespace crossmesh
