// What has to be sent between hosts, and the sends that do it.
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
  std::int64_t itemsize;                   ///< cuts are at multiples of this many bytes
  std::vector<std::vector<Host>> senders;  ///< hosts of each term of a sum; a copy has one term
  std::vector<Host> receivers;             ///< the host of each device that receives
  bool chained;                            ///< see Job
};

/// How a broadcast passes its hosts.
enum class Route {
  pipelined,  ///< in chunks, from each host to the next
  relayed,    ///< in one chunk, from each host to the next; other sends use ports that are idle
  tree,       ///< in one chunk, along `binomial_tree`
};

/// Bytes start:stop of a flow, with the hosts that they pass.
struct Send {
  std::size_t flow;
  std::int64_t start;
  std::int64_t stop;
  std::vector<Host> senders;  ///< the host that adds each term
  std::vector<Host> path;     ///< adding hosts, then receiving hosts: each once in either role
  Route route = Route::pipelined;
};

/// The flows to be sent, the network and the strategy.
class Problem {
 public:
  /// A pipelined send has `n_chunks` chunks, or fewer so that each has at least `chunk_bytes`.
  ///
  /// Throws std::invalid_argument like `check`; if a flow has no term, a term no host, a host no
  /// rate or an item no byte; if the bytes of all flows, times their terms and receivers, are 2**61
  /// or more; if there is no chunk; or if `chunk_bytes` is negative.
  Problem(std::vector<Flow> flows, Network network, Strategy strategy, std::int64_t n_chunks,
          std::int64_t chunk_bytes = 0);

  /// The same problem for other flows.
  Problem of(std::vector<Flow> flows) const;

  const std::vector<Flow>& flows() const { return flows_; }
  const Network& network() const { return network_; }
  Strategy strategy() const { return strategy_; }
  std::int64_t chunk_bytes() const { return chunk_bytes_; }
  std::size_t n_ports() const { return 2 * network_.rates.size(); }

  /// The hosts that the flow must reach, sorted. A copy must reach the receivers' hosts that have
  /// no replica; if all have one, it stays on a host with a receiver.
  const std::vector<Host>& reached(std::size_t flow) const { return reached_[flow]; }
  bool reaches(std::size_t flow, Host host) const;

  /// The hops and the ports that a send uses.
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
