// The innermost loop of a strided copy: runs of bytes at equal distances.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossmesh {

/// How often something is copied, and how far apart in memory, in bytes of any sign.
struct Loop {
  std::int64_t count;
  std::ptrdiff_t dst_stride;
  std::ptrdiff_t src_stride;
};

/// Copies `loop.count` runs of `run` bytes each; what is read and what is written do not overlap.
///
/// `whole` is how many bytes the copy has of which this may be a part: by it are the caches chosen
/// that are written to, or none. After its rows a copy calls `finish_rows`.
void copy_row(std::byte* dst, const std::byte* src, const Loop& loop, std::size_t run,
              std::int64_t whole);

/// No other thread sees what is written from now on before the rows of a copy of `whole` bytes.
void finish_rows(std::int64_t whole);

}  // namespace crossmesh
