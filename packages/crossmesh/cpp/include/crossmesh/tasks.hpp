// Unit tasks: which slice goes from which holders to which receivers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "crossmesh/box.hpp"

namespace crossmesh {

/// What one device holds, or needs, of the tensor.
struct Shard {
  std::int64_t device;
  Box box;
};

/// One slice, every device that holds it, and the devices that one of those will send it to.
struct UnitTask {
  Box box;
  std::vector<std::int64_t> senders;    ///< sorted, at least one
  std::vector<std::int64_t> receivers;  ///< sorted, at least one
};

/// Cuts a transfer into unit tasks: the common part of each distinct source shard with each
/// distinct destination shard, in the order of the source boxes, then of the destination boxes.
///
/// Receivers on a host with a replica of the slice are served there, by a task a host; all others
/// share one task, a broadcast. With `one_receiver` every task is split into one a receiver.
///
/// Throws std::invalid_argument if a box lies outside `shape`, a device has two shards or no host,
/// or the distinct source shards do not tile the tensor.
///
/// Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023,
/// section 2.2. There a task is a whole source slice and the two meshes share no device; here a
/// slice is cut further where destination shards divide it, and the meshes may overlap.
std::vector<UnitTask> unit_tasks(const Index& shape, const std::vector<Shard>& src,
                                 const std::vector<Shard>& dst,
                                 const std::map<std::int64_t, std::int64_t>& host_of,
                                 bool one_receiver);

}  // namespace crossmesh
