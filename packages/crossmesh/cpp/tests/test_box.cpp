#include "crossmesh/box.hpp"

#include <limits>

#include "check.hpp"

using crossmesh::Box;
using crossmesh::check_inside;
using crossmesh::Index;
using crossmesh::intersect;
using crossmesh::volume;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void volume_is_the_product() {
  CHECK(volume(Index{}) == 1);
  CHECK(volume(Index{2, 3, 4}) == 24);
  CHECK(volume(Index{2, 0, 4}) == 0);
  CHECK(volume(Index{kMost}) == kMost);
  CHECK(volume(Box{}) == 1);
  CHECK(volume(Box{{1, 3}, {2, 7}}) == 10);
}

void volume_refuses_what_does_not_fit() {
  CHECK_REFUSES(volume(Index{1, -1}), "must not be negative; got shape=(1, -1)");
  CHECK_REFUSES(volume(Index{kMost, 2}), "fewer than 2**63 elements");
  CHECK_REFUSES(volume(Index{kMost, 0, 2}), "fewer than 2**63 elements");
}

void intersection_is_what_both_hold() {
  CHECK(intersect({{0, 4}, {2, 6}}, {{3, 9}, {0, 3}}) == (Box{{3, 4}, {2, 3}}));
  CHECK(intersect(Box{}, Box{}) == Box{});
  CHECK(!intersect({{0, 4}}, {{4, 8}}));
  CHECK(!intersect({{2, 2}}, {{0, 8}}));
}

void box_must_lie_inside() {
  check_inside({{0, 4}, {4, 4}}, {4, 4});
  CHECK_REFUSES(check_inside({{0, 5}}, {4}), "got [0:5] in shape=(4,)");
  CHECK_REFUSES(check_inside({{-1, 4}}, {4}), "inside the tensor");
  CHECK_REFUSES(check_inside({{3, 2}}, {4}), "inside the tensor");
  CHECK_REFUSES(check_inside({}, {4}), "inside the tensor");
}

}  // namespace

int main() {
  volume_is_the_product();
  volume_refuses_what_does_not_fit();
  intersection_is_what_both_hold();
  box_must_lie_inside();
}
