// Intervals and indices, of which positions in a tensor consist.
#pragma once

#include <cstdint>
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

/// A shape, a position or an extent: one number for each dim.
using Index = std::vector<std::int64_t>;

/// `2:5`, for error messages.
std::string to_string(const Interval& interval);

/// `(2, 5)`, for error messages.
std::string to_string(const Index& index);

}  // namespace crossmesh
