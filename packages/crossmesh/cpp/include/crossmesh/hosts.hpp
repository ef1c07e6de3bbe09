// Lists of hosts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace crossmesh {

using Host = std::int64_t;  ///< 0, 1, ...
using Hosts = std::vector<Host>;

/// The index of a host in a table.
inline std::size_t at(Host host) { return static_cast<std::size_t>(host); }

/// Each host once, in ascending order.
inline Hosts sorted_set(Hosts hosts) {
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

/// The hosts for which `keep` is true.
template <typename Predicate>
Hosts filtered(const Hosts& hosts, Predicate keep) {
  Hosts result;
  std::copy_if(hosts.begin(), hosts.end(), std::back_inserter(result), keep);
  return result;
}

}  // namespace crossmesh
