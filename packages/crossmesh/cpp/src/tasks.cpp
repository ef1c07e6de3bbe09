#include "crossmesh/tasks.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace crossmesh {
namespace {

using Devices = std::vector<std::int64_t>;
using Hosts = std::map<std::int64_t, std::int64_t>;
using DevicesOfBox = std::map<Box, Devices>;

// The devices of each distinct shard that has elements.
DevicesOfBox distinct(const Index& shape, const std::vector<Shard>& shards, const Hosts& host_of) {
  DevicesOfBox devices_of;
  std::set<std::int64_t> seen;
  for (const Shard& shard : shards) {
    check_inside(shard.box, shape);
    if (!seen.insert(shard.device).second) {
      throw std::invalid_argument("a device has one shard on each side; got two of device " +
                                  std::to_string(shard.device));
    }
    if (host_of.count(shard.device) == 0) {
      throw std::invalid_argument("every device needs a host; got none for device " +
                                  std::to_string(shard.device));
    }
    if (volume(shard.box) > 0) {
      devices_of[shard.box].push_back(shard.device);
    }
  }
  for (auto& [box, devices] : devices_of) {
    std::sort(devices.begin(), devices.end());
  }
  return devices_of;
}

// Disjoint boxes whose volumes add up to that of the tensor hold each element exactly once.
void check_tiling(const Index& shape, const DevicesOfBox& sources) {
  std::int64_t missing = volume(shape);
  for (auto it = sources.begin(); it != sources.end(); ++it) {
    for (auto other = sources.begin(); other != it; ++other) {
      if (intersect(it->first, other->first)) {
        throw std::invalid_argument("source shards must be equal or disjoint; got " +
                                    to_string(other->first) + " and " + to_string(it->first));
      }
    }
    missing -= volume(it->first);
  }
  if (missing > 0) {
    throw std::invalid_argument("source shards must cover the tensor; " + std::to_string(missing) +
                                " elements of shape=" + to_string(shape) + " are on no device");
  }
}

// The receivers of one slice, in groups that one sender serves.
std::vector<Devices> receiver_groups(const Devices& senders, const Devices& receivers,
                                     const Hosts& host_of, bool one_receiver) {
  std::map<std::int64_t, Devices> on_host;
  for (const std::int64_t sender : senders) {
    on_host[host_of.at(sender)];
  }
  Devices elsewhere;
  for (const std::int64_t receiver : receivers) {
    const auto host = on_host.find(host_of.at(receiver));
    (host == on_host.end() ? elsewhere : host->second).push_back(receiver);
  }
  std::vector<Devices> groups;
  for (auto& [host, devices] : on_host) {
    groups.push_back(std::move(devices));
  }
  groups.push_back(std::move(elsewhere));

  std::vector<Devices> tasks;
  for (Devices& group : groups) {
    if (one_receiver) {
      for (const std::int64_t receiver : group) {
        tasks.push_back({receiver});
      }
    } else if (!group.empty()) {
      tasks.push_back(std::move(group));
    }
  }
  return tasks;
}

}  // namespace

std::vector<UnitTask> unit_tasks(const Index& shape, const std::vector<Shard>& src,
                                 const std::vector<Shard>& dst, const Hosts& host_of,
                                 bool one_receiver) {
  volume(shape);  // refuses what would overflow below
  const DevicesOfBox sources = distinct(shape, src, host_of);
  const DevicesOfBox destinations = distinct(shape, dst, host_of);
  check_tiling(shape, sources);

  std::vector<UnitTask> tasks;
  for (const auto& [held, senders] : sources) {
    for (const auto& [needed, receivers] : destinations) {
      const auto box = intersect(held, needed);
      if (!box) {
        continue;
      }
      for (Devices& group : receiver_groups(senders, receivers, host_of, one_receiver)) {
        tasks.push_back({*box, senders, std::move(group)});
      }
    }
  }
  return tasks;
}

}  // namespace crossmesh
