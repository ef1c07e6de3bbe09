// What is to be sent between hosts, and the sends that do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/hosts.hpp"
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

/// How a broadcast passes its hosts.
enum class Route {
  pipelined,  ///< in chunks, from each to the next
  relayed,    ///< in one chunk, from each to the next, while others use the ports that wait
  tree,       ///< in one chunk, along `binomial_tree`
};

/// Bytes start:stop of a flow on their way.
struct Send {
  std::size_t flow;
  std::int64_t start;
  std::int64_t stop;
  std::vector<Host> senders;  ///< the host that adds each term
  std::vector<Host> path;     ///< hosts that add, then those that receive: each once as either
  Route route = Route::pipelined;
};

/// What is to be sent, over what, and how.
class Problem {
 public:
  /// A pipelined send has `n_chunks` chunks, or fewer, so that each has `chunk_bytes` at least.
  ///
  /// Throws std::invalid_argument like `check`, if a flow has no term, a term no host, a host no
  /// rate or an item no byte, if all bytes to all receivers are 2**62 or more, or if `chunk_bytes`
  /// is negative.
  Problem(std::vector<Flow> flows, Network network, Strategy strategy, std::int64_t n_chunks,
          std::int64_t chunk_bytes = 0);

  /// The same of other flows.
  Problem of(std::vector<Flow> flows) const;

  const std::vector<Flow>& flows() const { return flows_; }
  const Network& network() const { return network_; }
  Strategy strategy() const { return strategy_; }
  std::int64_t chunk_bytes() const { return chunk_bytes_; }
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
  std::int64_t chunk_bytes_;
  std::vector<std::vector<Host>> reached_;
};

}  // namespace crossmesh
