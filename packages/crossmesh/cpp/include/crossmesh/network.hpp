// The network of hosts, and what one send occupies of it (Zhuang et al., MLSys 2023, section 3.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "crossmesh/hosts.hpp"

namespace crossmesh {

/// Every host has one interface that sends and receives at the same time, each at its rate, and any
/// two hosts are connected equally well. What stays inside a host takes no time.
struct Network {
  std::vector<double> rates;  ///< bytes per second of each host, each way
  double latency_s;           ///< from one host to another
};

/// How bytes reach several receivers.
enum class Strategy {
  broadcast,         ///< in chunks from each host of the path to the next
  send_recv,         ///< to each device in turn
  local_allgather,   ///< once to each host in turn; its devices gather the parts
  global_allgather,  ///< a part to each device; all devices pass the parts on in a ring
  signal,            ///< one byte, broadcast
};

/// One send: bytes along a path, given as the host of each device on it. The first `n_adders` hold
/// a term each of a partial sum (a plain copy has one: the sender), the others receive. Neighbours
/// on one host pass the bytes on inside it, which takes no time.
struct Job {
  std::int64_t n_bytes;
  std::vector<Host> path;
  std::size_t n_adders;
  bool chained;  ///< terms are added on the way; if not, all of them go to the last that adds
  Strategy strategy;
  std::int64_t n_chunks;  ///< K; of broadcasts
  /// Of a broadcast in one chunk, for each place on the path but that of the last adder: the place
  /// that it sends to, if it adds, or gets the bytes from. Nothing: each passes them to the next.
  std::vector<std::size_t> tree = {};
};

/// Bytes on their way from one host to another.
struct Hop {
  Host from;
  Host to;
  double start_s;
  double duration_s;
  double n_bytes;
};

/// A port in the hands of one send, for as long as its bytes take at the port's own rate: while it
/// waits for a slower host, it serves others as well. Port 2h is the sending side of host h, 2h + 1
/// its receiving.
struct Use {
  std::size_t port;
  double start_s;
  double stop_s;
};

/// The hops of a job and the ports that it uses, timed from its own start, and when it is done.
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
/// several times shares it among these. Terms pass in chunks, too, if they are broadcast, else whole.
///
/// A broadcast in one chunk is relayed: each hop begins when its sender has the bytes, and terms,
/// and both its ports are free, so that a port is idle, for others, between two hops. With
/// `binomial_tree` as its tree it takes as many steps as the number of hosts has digits.
Passage passage(const Job& job, const Network& network);

/// `Job::tree` of a sum over `n_adders` places, which then reaches `n_followers` more: two binomial
/// trees with a root in common, of ceil(log2 n) steps each (Thakur, Rabenseifner, Gropp,
/// "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005, section 4).
std::vector<std::size_t> binomial_tree(std::size_t n_adders, std::size_t n_followers);

/// The earliest start at which every port is free when the passage comes to it.
double start_s(const Passage& passed, const std::vector<double>& free_s);

/// Says when a passage that starts at `at_s` leaves its ports free again.
void occupy(const Passage& passed, double at_s, std::vector<double>& free_s);

/// Throws std::invalid_argument if there are more than 16384 hosts, a rate is not from 1e-100 to
/// 1e100, or the latency not from 0 to 1e100.
void check(const Network& network);

/// Throws std::invalid_argument if the path leaves the network or is too short, bytes are not from
/// 0 to 2**62 - 1, there is no chunk, or a tree of something else than one chunk, or that is none.
void check(const Job& job, const Network& network);

}  // namespace crossmesh
