#include "crossmesh/box.hpp"

namespace crossmesh {

std::string to_string(const Interval& interval) {
  return std::to_string(interval.start) + ":" + std::to_string(interval.stop);
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
