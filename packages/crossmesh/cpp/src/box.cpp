#include "crossmesh/box.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>

namespace crossmesh {

std::int64_t volume(const Index& shape) {
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw std::invalid_argument("sizes must not be negative; got shape=" + to_string(shape));
    }
    if (size == 0) {
      empty = true;
    } else if (product > limit / size) {
      throw std::invalid_argument("a shape must have fewer than 2**63 elements; got shape=" +
                                  to_string(shape));
    } else {
      product *= size;
    }
  }
  return empty ? 0 : product;
}

std::int64_t volume(const Box& box) {
  std::int64_t product = 1;
  for (const Interval& interval : box) {
    product *= interval.stop - interval.start;
  }
  return product;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common(a.size());
  for (std::size_t dim = 0; dim < a.size(); ++dim) {
    const std::int64_t start = std::max(a[dim].start, b[dim].start);
    const std::int64_t stop = std::min(a[dim].stop, b[dim].stop);
    if (start >= stop) {
      return std::nullopt;
    }
    common[dim] = {start, stop};
  }
  return common;
}

void check_inside(const Box& box, const Index& shape) {
  bool inside = box.size() == shape.size();
  for (std::size_t dim = 0; inside && dim < shape.size(); ++dim) {
    inside = 0 <= box[dim].start && box[dim].start <= box[dim].stop && box[dim].stop <= shape[dim];
  }
  if (!inside) {
    throw std::invalid_argument("a shard must be a box inside the tensor; got " + to_string(box) +
                                " in shape=" + to_string(shape));
  }
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (const Interval& interval : box) {
    text += text.size() > 1 ? ", " : "";
    text += std::to_string(interval.start) + ":" + std::to_string(interval.stop);
  }
  return text + "]";
}

std::string to_string(const Index& index) {
  std::string text = "(";
  for (const std::int64_t entry : index) {
    text += text.size() > 1 ? ", " : "";
    text += std::to_string(entry);
  }
  return text + (index.size() == 1 ? ",)" : ")");
}

}  // namespace crossmesh
