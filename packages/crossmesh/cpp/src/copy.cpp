#include "crossmesh/copy.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

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

struct Loop {
  std::int64_t count;
  std::ptrdiff_t dst_stride;
  std::ptrdiff_t src_stride;
};

// One memcpy of `run` bytes for each position of the loops, the last of which is the innermost.
void copy_runs(std::byte* dst, const std::byte* src, const std::vector<Loop>& loops,
               std::size_t depth, std::size_t run) {
  if (depth == loops.size()) {
    std::memcpy(dst, src, run);
    return;
  }
  const Loop& loop = loops[depth];
  for (std::int64_t i = 0; i < loop.count; ++i) {
    copy_runs(dst + i * loop.dst_stride, src + i * loop.src_stride, loops, depth + 1, run);
  }
}

}  // namespace

void copy_box(const View<std::byte>& dst, const Index& dst_start, const View<const std::byte>& src,
              const Index& src_start, const Index& extent, std::int64_t itemsize) {
  if (itemsize < 1) {
    throw std::invalid_argument("an element has at least one byte; got itemsize=" +
                                std::to_string(itemsize));
  }
  check_box("destination", dst, dst_start, extent);
  check_box("source", src, src_start, extent);
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) {
    return;
  }
  std::byte* const to = element(dst, dst_start);
  const std::byte* const from = element(src, src_start);
  const Span written = span(to, dst.strides, extent, itemsize);
  const Span read = span(from, src.strides, extent, itemsize);
  const std::less<> before;  // a total order, also over pointers into different arrays
  if (before(written.first, read.last) && before(read.first, written.last)) {
    throw std::invalid_argument("source and destination boxes must not overlap in memory");
  }

  std::vector<Loop> loops;
  std::int64_t run = itemsize;
  for (std::size_t dim = extent.size(); dim-- > 0;) {
    const bool extends_run =
        loops.empty() && dst.strides[dim] == run && src.strides[dim] == run;
    if (extent[dim] == 1) {
      continue;
    }
    if (extends_run) {
      run *= extent[dim];
    } else {
      loops.push_back({extent[dim], dst.strides[dim], src.strides[dim]});
    }
  }
  std::reverse(loops.begin(), loops.end());
  copy_runs(to, from, loops, 0, static_cast<std::size_t>(run));
}

}  // namespace crossmesh
