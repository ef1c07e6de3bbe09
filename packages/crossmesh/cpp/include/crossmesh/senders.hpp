// Who sends: flows between hosts, and the ways to choose their senders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/network.hpp"

namespace crossmesh {

/// Bytes that some hosts need, and the hosts that can send them.
struct Flow {
  std::int64_t n_bytes;
  std::int64_t itemsize;                   ///< a cut is at a multiple of it
  std::vector<std::vector<Host>> senders;  ///< that hold each term of a sum; a copy has one term
  std::vector<Host> receivers;             ///< the host of each device that receives
  bool chained;                            ///< see Job
};

/// Bytes start:stop of a flow on their way.
struct Send {
  std::size_t flow;
  std::int64_t start;
  std::int64_t stop;
  std::vector<Host> senders;  ///< the host that adds each term
  std::vector<Host> path;     ///< hosts that add, then those that receive: each once as either
};

/// What is to be sent, over what, and how.
class Problem {
 public:
  /// Throws std::invalid_argument like `check`, if a flow has no term, a term no host, a host no
  /// rate or an item no byte, or if all bytes to all receivers are 2**62 or more.
  Problem(std::vector<Flow> flows, Network network, Strategy strategy, std::int64_t n_chunks);

  const std::vector<Flow>& flows() const { return flows_; }
  const Network& network() const { return network_; }
  Strategy strategy() const { return strategy_; }
  std::int64_t n_chunks() const { return n_chunks_; }
  std::size_t n_ports() const { return 2 * network_.rates.size(); }

  /// Hosts that the flow must reach, sorted: of a copy, those of receivers without a replica. If
  /// there are none, it is sent where a receiver is.
  const std::vector<Host>& reached(std::size_t flow) const { return reached_[flow]; }
  bool reaches(std::size_t flow, Host host) const;

  /// What a send occupies.
  Passage passage(const Send& send) const;
  std::vector<Passage> passages(const std::vector<Send>& sends) const;

 private:
  std::vector<Flow> flows_;
  Network network_;
  Strategy strategy_;
  std::int64_t n_chunks_;
  std::vector<std::vector<Host>> reached_;
};

/// Each flow from the lowest host that holds it, in the order given: the baseline of section 3.2
/// (Zhuang et al., MLSys 2023).
std::vector<Send> naive(const Problem& problem);

/// Each flow from the host that would be done with it first (then the lowest), the largest flow
/// first: the greedy solution of Eq. 4. A term of a sum comes, if possible, from a host that adds
/// another term anyway or needs the sum. Receivers follow the sender in a circle of all hosts, so
/// that an all-gather runs in rings; but the one that sends most comes last, where it need not pass
/// the bytes on.
///
/// The paper calls the greedy choice optimal; it is not even for one kind of flow (3, 3, 2, 2, 2 on
/// two hosts). On m hosts of equal rate it is within 4/3 - 1/(3m) of the optimum if every host
/// holds every slice (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), else within
/// ceil(log2(m)) + 1 (Azar, Naor, Rom, "The Competitiveness of On-Line Assignments", 1995).
///
/// Grows as the flows times their senders and receivers.
std::vector<Send> balanced(const Problem& problem);

/// Flows cut among the hosts that hold them so that the busiest interface is as little busy as it
/// can be (`level`); who passes a broadcast on is chosen with it, where hosts both send and receive.
/// Sums are not cut. Flows of the same hosts lie on a line, next to those of the same receivers,
/// and each host gets a stretch of it: there are at most as many cuts as hosts in each such group.
std::vector<Send> shared(const Problem& problem);

/// Time that no choice of senders, forwarders, cuts and orders can beat.
///
/// Every host must receive all that it needs; the hosts that hold a flow must send it at least
/// once; and of all its copies, one a receiver, each must come from a host that holds or gets it.
/// The last two are a fractional load balance (`level`). Of a partial sum, terms on disjoint hosts
/// must leave them apart. Latencies are left out.
///
/// Throws like Problem.
double lower_bound_s(const std::vector<Flow>& flows, const std::vector<double>& rates);

}  // namespace crossmesh
