// The simulator: when sends begin and end that compete for ports.
#pragma once

#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// The end of a job, and its hops, timed from the start of the transfer.
struct Run {
  double end_s;
  std::vector<Hop> hops;
};

/// Starts each job in turn as soon as its ports are free, so that all hosts keep the same order.
/// Tasks that share a port never use it at the same time (Zhuang et al., MLSys 2023, Eq. 3, applied
/// to each port: a host may receive one send while it sends another). A port is taken only while
/// the bytes pass it, so the next broadcast along a path follows closely behind the one before.
///
/// The time grows as the jobs times the length of their paths. Throws std::invalid_argument like
/// `check`.
std::vector<Run> simulate_in_order(const std::vector<Job>& jobs, const Network& network);

/// Starts all jobs at once; they share the ports as fairly as long-lived connections do: the speeds
/// of all jobs grow together, each until a port of its job is full (max-min fairness, Bertsekas and
/// Gallager, "Data Networks", 1992, section 6.5.2). At any time, all hops of a job have the same
/// speed. That a chunk arrives later at the last host of a path is left out, in favour of this
/// order.
///
/// The time grows as the square of the jobs times the length of their paths. Throws like `check`.
std::vector<Run> simulate_together(const std::vector<Job>& jobs, const Network& network);

}  // namespace crossmesh
