// The best order and the best senders, for few sends: a depth-first search with pruning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// Interchangeable sends, and the passages that each of them can take.
struct Class {
  std::vector<std::size_t> sends;
  std::vector<Passage> ways;
};

/// A send, and the index of the passage that it takes among those of its class.
struct Step {
  std::size_t send;
  std::size_t way;
};

struct Found {
  double end_s;
  std::vector<Step> steps;
};

/// The earliest end before `best_s` that the search finds, with the order and the passages that
/// reach it; nothing if it finds none, or none before it uses up its `steps`.
///
/// This is the "Depth First Search with Pruning" of Zhuang et al., MLSys 2023, section 3.2. Its
/// time budget is counted in ports that it looks at, so that it ends the same on all ranks. A node
/// is a schedule of some sends; its children start one more send, the earliest start first. A
/// branch is cut
///
///   - if a port cannot do its remaining work before `best_s` (the paper's rule), or
///   - if its send does not start the earliest, and another send could end before it starts: that
///     one could be put in front without delaying anything (active schedules: Giffler and Thompson,
///     "Algorithms for Solving Production-Scheduling Problems", 1960), or
///   - if its send starts before the previous one: the opposite order gives the same schedule.
///
/// If the search ends before its budget does, and hops neither wait for chunks nor have latency,
/// the result is the best of all schedules with whole flows. The time grows exponentially; with
/// more than 256 sends nothing is searched (the paper finds no efficient schedule in time beyond
/// 20).
std::optional<Found> depth_first(const std::vector<Class>& classes, std::size_t n_ports,
                                 double best_s, std::int64_t steps);

}  // namespace crossmesh
