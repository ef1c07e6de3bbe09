#include "crossmesh/copy.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "crossmesh/copy_row.hpp"

namespace crossmesh {
namespace {

template <typename Byte>
void check_box(const char* side, const View<Byte>& view, const Index& start, const Index& extent) {
  const std::size_t rank = extent.size();
  bool inside = view.shape.size() == rank && view.strides.size() == rank && start.size() == rank;
  for (std::size_t dim = 0; inside && dim < rank; ++dim) {
    inside = extent[dim] >= 0 && start[dim] >= 0 && extent[dim] <= view.shape[dim] &&
             start[dim] <= view.shape[dim] - extent[dim];
  }
  if (!inside) {
    throw std::invalid_argument("a box must lie inside its array; got start=" + to_string(start) +
                                " and extent=" + to_string(extent) + " in a " + side +
                                " of shape=" + to_string(view.shape));
  }
}

template <typename Byte>
Byte* element(const View<Byte>& view, const Index& position) {
  std::ptrdiff_t offset = 0;
  for (std::size_t dim = 0; dim < position.size(); ++dim) {
    offset += position[dim] * view.strides[dim];
  }
  return view.data + offset;
}

struct Span {
  const std::byte* first;
  const std::byte* last;  // one past
};

Span span(const std::byte* data, const Index& strides, const Index& extent, std::int64_t itemsize) {
  std::ptrdiff_t lowest = 0;
  std::ptrdiff_t highest = 0;
  for (std::size_t dim = 0; dim < extent.size(); ++dim) {
    const std::ptrdiff_t reach = (extent[dim] - 1) * strides[dim];
    (reach < 0 ? lowest : highest) += reach;
  }
  return {data + lowest, data + highest + itemsize};
}

// A box as nested loops, the innermost last, around runs of bytes that are contiguous on both
// sides. Dims are collapsed as far as the strides of both sides allow.
struct Copy {
  std::byte* dst;
  const std::byte* src;
  std::vector<Loop> loops;
  std::int64_t run;
  std::int64_t whole;  // bytes to copy; may be fewer than those of all loops
};

Copy collapse(std::byte* dst, const Index& dst_strides, const std::byte* src,
              const Index& src_strides, const Index& extent, std::int64_t itemsize) {
  Copy copy{dst, src, {}, itemsize, 0};
  for (std::size_t dim = extent.size(); dim-- > 0;) {
    const Loop outer{extent[dim], dst_strides[dim], src_strides[dim]};
    if (outer.count == 1) {
      continue;
    }
    if (copy.loops.empty() && outer.dst_stride == copy.run && outer.src_stride == copy.run) {
      copy.run *= outer.count;
    } else if (!copy.loops.empty() &&
               outer.dst_stride == copy.loops.back().count * copy.loops.back().dst_stride &&
               outer.src_stride == copy.loops.back().count * copy.loops.back().src_stride) {
      copy.loops.back().count *= outer.count;
    } else {
      copy.loops.push_back(outer);
    }
  }
  std::reverse(copy.loops.begin(), copy.loops.end());
  return copy;
}

// Copies the first `count` rounds of loop `depth`.
void copy_rounds(const Copy& copy, std::byte* dst, const std::byte* src, std::size_t depth,
                 std::int64_t count) {
  const Loop loop{count, copy.loops[depth].dst_stride, copy.loops[depth].src_stride};
  if (depth + 1 == copy.loops.size()) {
    copy_row(dst, src, loop, static_cast<std::size_t>(copy.run), copy.whole);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    copy_rounds(copy, dst + i * loop.dst_stride, src + i * loop.src_stride, depth + 1,
                copy.loops[depth + 1].count);
  }
}

// Copies bytes `first` to `last` of those inside loop `depth`, counted in the order of the loops.
// `dst` and `src` are offsets, not addresses: a packed side may have only these bytes, and then the
// addresses of the other bytes are outside its memory.
void copy_part(const Copy& copy, std::ptrdiff_t dst, std::ptrdiff_t src, std::size_t depth,
               std::int64_t first, std::int64_t last) {
  if (depth == copy.loops.size()) {
    std::memcpy(copy.dst + (dst + first), copy.src + (src + first),
                static_cast<std::size_t>(last - first));
    return;
  }
  std::int64_t round = copy.run;  // bytes
  for (std::size_t inner = depth + 1; inner < copy.loops.size(); ++inner) {
    round *= copy.loops[inner].count;
  }
  const Loop& loop = copy.loops[depth];
  const auto copy_some = [&](std::int64_t i, std::int64_t from, std::int64_t to) {
    copy_part(copy, dst + i * loop.dst_stride, src + i * loop.src_stride, depth + 1, from, to);
  };
  std::int64_t i = first / round;
  if (first % round != 0) {
    copy_some(i, first % round, std::min(last - i * round, round));
    ++i;
  }
  const std::int64_t whole = last / round - i;
  if (whole > 0) {
    copy_rounds(copy, copy.dst + (dst + i * loop.dst_stride),
                copy.src + (src + i * loop.src_stride), depth, whole);
    i += whole;
  }
  if (i * round < last) {
    copy_some(i, 0, last - i * round);
  }
}

// The same from the outermost loop on: a whole pack, unpack or copy of a box.
void copy_bytes(Copy copy, std::ptrdiff_t dst, std::ptrdiff_t src, std::int64_t first,
                std::int64_t last) {
  copy.whole = last - first;
  copy_part(copy, dst, src, 0, first, last);
  finish_rows(copy.whole);
}

Index packed_strides(const Index& shape, std::int64_t itemsize) {
  Index strides(shape.size());
  std::int64_t stride = itemsize;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return strides;
}

std::int64_t bytes_of(const Index& extent, std::int64_t itemsize) {
  return std::accumulate(extent.begin(), extent.end(), itemsize, std::multiplies<>());
}

void check_itemsize(std::int64_t itemsize) {
  if (itemsize < 1) {
    throw std::invalid_argument("an element has at least one byte; got itemsize=" +
                                std::to_string(itemsize));
  }
}

void check_apart(const Span& written, const Span& read) {
  const std::less<> before;  // unlike <, a total order of pointers into different arrays
  if (before(written.first, read.last) && before(read.first, written.last)) {
    throw std::invalid_argument("source and destination boxes must not overlap in memory");
  }
}

template <typename Byte>
void check_part(const View<Byte>& view, std::int64_t first, std::int64_t count,
                std::int64_t itemsize) {
  check_itemsize(itemsize);
  const std::int64_t all = bytes_of(view.shape, itemsize);
  if (view.strides.size() != view.shape.size() || first < 0 || count < 0 || first > all - count) {
    throw std::invalid_argument("a part must lie inside its array; got first=" +
                                std::to_string(first) + " and " + std::to_string(count) +
                                " bytes of " + std::to_string(all));
  }
}

}  // namespace

void copy_box(const View<std::byte>& dst, const Index& dst_start, const View<const std::byte>& src,
              const Index& src_start, const Index& extent, std::int64_t itemsize) {
  check_itemsize(itemsize);
  check_box("destination", dst, dst_start, extent);
  check_box("source", src, src_start, extent);
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) {
    return;
  }
  std::byte* const to = element(dst, dst_start);
  const std::byte* const from = element(src, src_start);
  check_apart(span(to, dst.strides, extent, itemsize), span(from, src.strides, extent, itemsize));
  const std::int64_t count = bytes_of(extent, itemsize);
  copy_bytes(collapse(to, dst.strides, from, src.strides, extent, itemsize), 0, 0, 0, count);
}

void pack(std::byte* dst, const View<const std::byte>& src, std::int64_t first, std::int64_t count,
          std::int64_t itemsize) {
  check_part(src, first, count, itemsize);
  if (count == 0) {
    return;
  }
  check_apart({dst, dst + count}, span(src.data, src.strides, src.shape, itemsize));
  const Index packed = packed_strides(src.shape, itemsize);
  copy_bytes(collapse(dst, packed, src.data, src.strides, src.shape, itemsize), -first, 0, first,
             first + count);
}

void unpack(const View<std::byte>& dst, std::int64_t first, const std::byte* src,
            std::int64_t count, std::int64_t itemsize) {
  check_part(dst, first, count, itemsize);
  if (count == 0) {
    return;
  }
  check_apart(span(dst.data, dst.strides, dst.shape, itemsize), {src, src + count});
  const Index packed = packed_strides(dst.shape, itemsize);
  copy_bytes(collapse(dst.data, dst.strides, src, packed, dst.shape, itemsize), 0, -first, first,
             first + count);
}

}  // namespace crossmesh
