// Copies of boxes between strided arrays: pack, unpack, and both at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossmesh/box.hpp"

namespace crossmesh {

/// An array in memory that the caller vouches for. Strides are in bytes and may be of any sign.
template <typename Byte>
struct View {
  Byte* data;  ///< of the element at position zero
  Index shape;
  Index strides;
};

/// Copies `extent` elements of `itemsize` bytes at `src_start` of `src` to `dst_start` of `dst`.
/// With a contiguous destination this packs a box, with a contiguous source it unpacks one.
///
/// Throws std::invalid_argument if the ranks differ, a box lies outside its array, `itemsize` is
/// not positive, or the two boxes overlap in memory.
void copy_box(const View<std::byte>& dst, const Index& dst_start, const View<const std::byte>& src,
              const Index& src_start, const Index& extent, std::int64_t itemsize);

}  // namespace crossmesh
