// The order in which tasks that compete for ports are started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace crossmesh {

/// A task as the scheduler sees it. Tasks that share a port never run at the same time.
struct OldJob {
  double duration_s;
  std::vector<std::int64_t> ports;  ///< any numbers; one for each direction of each host
  std::int64_t n_devices;           ///< that take part
};

/// When the last job ends, if every job in `order` starts as soon as its ports are free.
/// Throws std::invalid_argument if a duration is not finite or is negative, a job has a negative
/// number of devices, or `order` does not name every job exactly once.
double finish_s(const std::vector<OldJob>& jobs, const std::vector<std::size_t>& order);

/// Orders jobs in rounds: each round is a set of jobs without a common port and with as many
/// devices as the best of a few random greedy passes found. If starting the longest first ends
/// earlier, returns that order instead.
///
/// The generator has a fixed seed, so equal jobs get equal orders on every machine.
/// Throws like finish_s.
///
/// Source: Zhuang et al., MLSys 2023, section 3.2, "Greedy Search with Randomization". The first
/// pass of a round takes the longest first instead of a random order.
std::vector<std::size_t> order_jobs(const std::vector<OldJob>& jobs);

}  // namespace crossmesh
