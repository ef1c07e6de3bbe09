// What nobody can beat.
#pragma once

#include "crossmesh/problem.hpp"

namespace crossmesh {

/// Time that no choice of senders, forwarders, cuts and orders can beat.
///
/// Every host must receive all that it needs; the hosts that hold a flow must send it at least
/// once; and of all its copies, one a receiver, each must come from a host that holds or gets it.
/// The last two are a fractional load balance (`level`). Of a partial sum, terms on disjoint hosts
/// must leave them apart. Strategies, chunks and latencies are left out.
double lower_bound_s(const Problem& problem);

}  // namespace crossmesh
