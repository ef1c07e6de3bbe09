// The lower bound: a time that no plan can beat.
#pragma once

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// Time in seconds that no choice of senders, forwarders, cuts and orders can beat.
///
/// Every host must receive all bytes that it needs; the hosts that hold a flow must send it at
/// least once; and each of its copies, one for each receiver, must come from a host that holds or
/// gets it. The last two are a fractional load balance (`level`). The terms of a partial sum on
/// disjoint hosts must leave these hosts separately, and each byte has at least as many adders as
/// the fewest hosts that have all terms. Strategies, chunks and latencies are left out.
double lower_bound_s(const Problem& problem);

}  // namespace crossmesh
