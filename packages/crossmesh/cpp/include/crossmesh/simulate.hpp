// The simulator: when sends that compete for ports begin and end.
#pragma once

#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// When a job ends, and its hops, timed from the start of the transfer.
struct Run {
  double end_s;
  std::vector<Hop> hops;
};

/// Starts each job in turn as soon as its ports are free: what a host does follows the one order.
/// Tasks that share a port never use it at the same time (Zhuang et al., MLSys 2023, Eq. 3, per
/// port: a host may receive one send while it sends another). A port is taken only while the bytes
/// pass it, so that the next broadcast along a path follows in the wake of the one before.
///
/// Grows as jobs times the length of their paths. Throws std::invalid_argument like `check`.
std::vector<Run> simulate_in_order(const std::vector<Job>& jobs, const Network& network);

/// Starts all jobs at once; they share the ports as fairly as long-lived connections do: the speeds
/// of all grow together, each until a port of its job is full (max-min fairness, Bertsekas and
/// Gallager, "Data Networks", 1992, section 6.5.2). Every job uses its hops at one speed from start
/// to end; that a chunk comes later to the last host of a path is left out, in favour of this
/// order.
///
/// Grows as the square of the jobs times the length of their paths. Throws like `check`.
std::vector<Run> simulate_together(const std::vector<Job>& jobs, const Network& network);

}  // namespace crossmesh
