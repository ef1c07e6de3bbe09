#include "crossmesh/ports.hpp"

#include <algorithm>
#include <utility>

#include "crossmesh/greedy.hpp"

namespace crossmesh {

namespace {

constexpr double kRounding = 1e-12;  // relative [chosen: some thousand roundings of a double]

// Whether two spans overlap by no more than rounding: by a negligible part of the time itself, and
// by less than half of either span.
bool touches(const std::pair<double, double>& a, const std::pair<double, double>& b) {
  const double overlap = std::min(a.second, b.second) - std::max(a.first, b.first);
  const double shorter = std::min(a.second - a.first, b.second - b.first);
  return overlap <= 0 ||
         (overlap <= std::max(a.second, b.second) * kRounding && 2 * overlap < shorter);
}

}  // namespace

double Ports::start_s(const Passage& passed) const {
  double start = crossmesh::start_s(passed, free_s_);
  for (bool moved = relays_; moved;) {
    moved = false;
    for (const Use& use : passed.uses) {
      const auto& spans = taken_[use.port];
      std::pair<double, double> own{start + use.start_s, start + use.stop_s};
      auto span = std::partition_point(spans.begin(), spans.end(), [&](const auto& other) {
        return other.second <= own.first;
      });
      for (; span != spans.end() && span->first < own.second; ++span) {
        const double later = span->second - use.start_s;
        // `later` may round to the same start; then the start cannot move any further.
        if (!touches(own, *span) && later > start) {
          start = later;
          own = {start + use.start_s, start + use.stop_s};
          moved = true;
        }
      }
    }
  }
  return start;
}

void Ports::occupy(const Passage& passed, double at_s) {
  if (!passed.relayed) {
    return crossmesh::occupy(passed, at_s, free_s_);
  }
  relays_ = true;
  for (const Use& use : passed.uses) {
    auto& spans = taken_[use.port];
    const std::pair<double, double> span{at_s + use.start_s, at_s + use.stop_s};
    if (span.first < span.second) {  // so that both starts and stops of the spans ascend
      spans.insert(std::upper_bound(spans.begin(), spans.end(), span), span);
    }
  }
}

}  // namespace crossmesh
