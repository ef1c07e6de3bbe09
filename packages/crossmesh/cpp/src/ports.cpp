#include "crossmesh/ports.hpp"

#include <algorithm>

#include "crossmesh/greedy.hpp"

namespace crossmesh {

double Ports::start_s(const Passage& passed) const {
  double start = crossmesh::start_s(passed, free_s_);
  for (bool moved = relays_; moved;) {
    moved = false;
    for (const Use& use : passed.uses) {
      const auto& spans = taken_[use.port];
      // Spans that only touch are not in each other's way, whatever rounding makes of them.
      auto span = std::partition_point(spans.begin(), spans.end(), [&](const auto& other) {
        return other.second * kBelow <= start + use.start_s;
      });
      for (; span != spans.end() && span->first < (start + use.stop_s) * kBelow; ++span) {
        if (span->second * kBelow > start + use.start_s) {  // the start may have moved past it
          start = span->second - use.start_s;
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
    spans.insert(std::upper_bound(spans.begin(), spans.end(), span), span);
  }
}

}  // namespace crossmesh
