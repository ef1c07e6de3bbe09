// The best order, and the best sender of each: a search with pruning, for few sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// Interchangeable sends, and the ways in which any one of them can go.
struct Class {
  std::vector<std::size_t> sends;
  std::vector<Passage> ways;
};

/// A send and the way that it goes.
struct Step {
  std::size_t send;
  std::size_t way;
};

struct Found {
  double end_s;
  std::vector<Step> steps;
};

/// The earliest end before `best_s`, and the order and ways that reach it; nothing if the search,
/// or its `steps`, ended without any.
///
/// "Depth First Search with Pruning" (Zhuang et al., MLSys 2023, section 3.2), its time budget
/// counted in ports looked at, so that all ranks end alike. A node is a schedule of some sends; its
/// children start one more, the earliest start first. A branch is cut
///
///   - if a port cannot do what is left to it before `best_s` (the paper's rule), or
///   - if the next start is not the earliest and another send could end before it: that one could
///     be put in front and delay nothing (active schedules: Giffler and Thompson, "Algorithms for
///     Solving Production-Scheduling Problems", 1960), or
///   - if it starts before the send before it, since the other way round it is the same schedule.
///
/// If it ends by itself, and hops have neither chunks to wait for nor latency, the result is the
/// best schedule there is with whole flows. Grows exponentially; with more than 256 sends nothing
/// is searched (the paper finds no efficient schedule in time beyond 20).
std::optional<Found> depth_first(const std::vector<Class>& classes, std::size_t n_ports,
                                 double best_s, std::int64_t steps);

}  // namespace crossmesh
