// Copies between strided arrays and packed bytes: pack, unpack, and from array to array.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossmesh/box.hpp"

namespace crossmesh {

/// An array in memory; the caller makes sure that the memory exists. Strides are in bytes and may
/// have either sign.
template <typename Byte>
struct View {
  Byte* data;  ///< address of the element at position zero
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
/// Throws std::invalid_argument if `src` does not have these bytes, `itemsize` is not positive, or
/// source and destination overlap in memory.
void pack(std::byte* dst, const View<const std::byte>& src, std::int64_t first, std::int64_t count,
          std::int64_t itemsize);

/// The inverse of `pack`: overwrites bytes `first` to `first + count` of the elements of `dst`, in
/// C order, with the `count` bytes of `src`.
///
/// Throws std::invalid_argument like `pack`.
void unpack(const View<std::byte>& dst, std::int64_t first, const std::byte* src,
            std::int64_t count, std::int64_t itemsize);

}  // namespace crossmesh
