// The innermost loop of a strided copy: runs of bytes at equal distances.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossmesh {

/// How often something is copied, and the distances in memory, in bytes and of either sign.
struct Loop {
  std::int64_t count;
  std::ptrdiff_t dst_stride;
  std::ptrdiff_t src_stride;
};

/// Copies `loop.count` runs of `run` bytes each; source and destination do not overlap.
///
/// `whole` is the number of bytes of the whole copy, of which this may be a part: it decides
/// whether bytes are written to the caches or past them. After its last row, a copy calls
/// `finish_rows`.
void copy_row(std::byte* dst, const std::byte* src, const Loop& loop, std::size_t run,
              std::int64_t whole);

/// Orders the rows of a copy of `whole` bytes before later writes: a thread that sees such a write
/// also sees the rows.
void finish_rows(std::int64_t whole);

}  // namespace crossmesh
