// Boxes: products of half-open intervals, the shape of everything that a transfer moves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace crossmesh {

/// The indices `start <= i < stop` of one dim.
struct Interval {
  std::int64_t start;
  std::int64_t stop;
};

inline bool operator==(const Interval& a, const Interval& b) {
  return a.start == b.start && a.stop == b.stop;
}
inline bool operator<(const Interval& a, const Interval& b) {
  return a.start != b.start ? a.start < b.start : a.stop < b.stop;
}

/// One interval a dim; the empty box is that of a scalar and holds one element.
using Box = std::vector<Interval>;

/// A shape, a position or an extent: one number a dim.
using Index = std::vector<std::int64_t>;

/// Elements in `shape`. Throws std::invalid_argument if a size is negative or the product of the
/// sizes does not fit 63 bits (a size of zero does not excuse the others: numpy refuses it too).
std::int64_t volume(const Index& shape);

/// Elements in `box`, which must lie in a shape whose volume was checked.
std::int64_t volume(const Box& box);

/// The common part of two boxes of equal rank, or nothing if they have no element in common.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Throws std::invalid_argument unless `box` has the rank of `shape` and lies inside it.
void check_inside(const Box& box, const Index& shape);

/// `[0:2, 1:5]`, for error messages.
std::string to_string(const Box& box);

/// `(2, 5)`, for error messages.
std::string to_string(const Index& index);

}  // namespace crossmesh
