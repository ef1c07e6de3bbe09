// Copies between strided arrays and packed bytes: pack, unpack, and both at once.
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
///
/// Throws std::invalid_argument if the ranks differ, a box lies outside its array, `itemsize` is
/// not positive, or the two boxes overlap in memory.
void copy_box(const View<std::byte>& dst, const Index& dst_start, const View<const std::byte>& src,
              const Index& src_start, const Index& extent, std::int64_t itemsize);

/// Copies bytes `first` to `first + count` of the elements of `src`, in C order, to `dst`.
///
/// Throws std::invalid_argument if `src` has no such bytes, `itemsize` is not positive, or memory
/// overlaps.
void pack(std::byte* dst, const View<const std::byte>& src, std::int64_t first, std::int64_t count,
          std::int64_t itemsize);

/// The inverse of `pack`: writes `count` bytes of `src` where the elements of `dst` have bytes
/// `first` to `first + count`.
///
/// Throws std::invalid_argument as `pack` does.
void unpack(const View<std::byte>& dst, std::int64_t first, const std::byte* src,
            std::int64_t count, std::int64_t itemsize);

}  // namespace crossmesh
