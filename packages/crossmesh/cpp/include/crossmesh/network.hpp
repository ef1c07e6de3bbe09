// The network of hosts, and the part of it that a send uses (Zhuang et al., MLSys 2023, section
// 3.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/hosts.hpp"

namespace crossmesh {

/// Every host has one interface, which sends and receives at the same time, both at its rate, and
/// any two hosts are connected equally well. Traffic inside a host takes no time.
struct Network {
  std::vector<double> rates;  ///< bytes per second of each host, in each direction
  double latency_s;           ///< from one host to another
};

/// How bytes reach several receivers.
enum class Strategy {
  broadcast,         ///< in chunks from each host of the path to the next
  send_recv,         ///< to each device in turn
  local_allgather,   ///< once to each host in turn; its devices gather the parts
  global_allgather,  ///< a part to each device; all devices pass the parts on in a ring
  signal,            ///< a broadcast of one byte
};

/// One send: bytes along a path of devices, of which the path has the hosts. The first `n_adders`
/// devices hold one term each of a partial sum (a plain copy has one: the sender), and the others
/// receive. Adjacent devices on one host pass the bytes on inside it, which takes no time.
struct Job {
  std::int64_t n_bytes;
  std::vector<Host> path;
  std::size_t n_adders;
  bool chained;  ///< terms are added on the way; if not, all of them go to the last adder
  Strategy strategy;
  std::int64_t n_chunks;  ///< K, the number of chunks of a broadcast
  /// Only for a broadcast in one chunk. For each position on the path except that of the last
  /// adder: the position that it sends to, if it adds, or else the one that it gets the bytes from.
  /// Empty: each device sends to the next one on the path.
  std::vector<std::size_t> tree = {};
};

/// Bytes that one host sends to another.
struct Hop {
  Host from;
  Host to;
  double start_s;
  double duration_s;
  double n_bytes;
};

/// The use of a port by one send, for as long as its bytes take at the port's own rate: while the
/// port waits for a slower host, it serves other sends as well. Port 2h is the sending side of host
/// h, and port 2h + 1 its receiving side.
struct Use {
  std::size_t port;
  double start_s;
  double stop_s;
};

/// The hops of a job and the ports that it uses, timed from its own start, and its end.
struct Passage {
  std::vector<Hop> hops;
  std::vector<Use> uses;  ///< by port, then by start; one span for each port unless `relayed`
  double total_s;
  bool relayed = false;  ///< in one chunk over several hops, one after the other (`Ports`)
};

/// How a job passes through the network, with t = bytes / rate of the slowest host, A receiver
/// hosts other than the sender's and B devices on each:
///
///   broadcast         t (1 + (A - 1) / K); the paper's K + A counts the first chunk twice
///   send_recv         A B t
///   local_allgather   A t
///   global_allgather  t, and t (A B - 1) / (A B) more if A > 1; the paper rounds up to 2 t
///
/// and the latency of every hop that waits for another. A broadcast that crosses a port several
/// times shares the port among its crossings. In a broadcast the terms of a sum pass in chunks,
/// too; with other strategies they pass whole.
///
/// A broadcast in one chunk is relayed: each hop begins when its sender has all bytes and terms and
/// both its ports are free. So between two hops a port is idle, and other sends can use it. With
/// `binomial_tree` as its tree, it takes as many steps as the number of hosts has binary digits.
Passage passage(const Job& job, const Network& network);

/// `Job::tree` for a sum over `n_adders` positions that then reaches `n_followers` more: two
/// binomial trees with a common root, of ceil(log2 n) steps each (Thakur, Rabenseifner, Gropp,
/// "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005, section 4).
std::vector<std::size_t> binomial_tree(std::size_t n_adders, std::size_t n_followers);

/// The earliest start at which every port is free when the passage reaches it.
double start_s(const Passage& passed, const std::vector<double>& free_s);

/// Records when a passage that starts at `at_s` frees its ports again.
void occupy(const Passage& passed, double at_s, std::vector<double>& free_s);

/// Throws std::invalid_argument if there are more than 16384 hosts, a rate is not from 1e-100 to
/// 1e100, or the latency is not from 0 to 1e100.
void check(const Network& network);

/// Throws std::invalid_argument if the path leaves the network or is too short, the bytes are not
/// from 0 to 2**62 - 1, there is no chunk, or there is a tree that does not lead to the last adder
/// and from it, or that is not of a broadcast in one chunk.
void check(const Job& job, const Network& network);

}  // namespace crossmesh
