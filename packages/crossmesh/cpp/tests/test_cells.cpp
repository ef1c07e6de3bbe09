#include "crossmesh/cells.hpp"

#include <limits>

#include "check.hpp"

using crossmesh::Cell;
using crossmesh::Runs;
using crossmesh::Tile;

namespace {

std::vector<Cell> cells(const std::vector<Tile>& src, const std::vector<Tile>& dst) {
  return crossmesh::cells(src, dst, 4);
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

bool equal(const Cell& cell, std::size_t src, std::size_t dst, const Tile& common) {
  return cell.src == src && cell.dst == dst && cell.common == common;
}

void rows_and_columns_meet_in_boxes() {
  const auto found = cells({{{{0, 2}}, {{0, 4}}}, {{{2, 4}}, {{0, 4}}}},
                           {{{{0, 4}}, {{0, 3}}}, {{{0, 4}}, {{3, 4}}}});
  CHECK(found.size() == 4);
  CHECK(equal(found[0], 0, 0, {{{0, 2}}, {{0, 3}}}));
  CHECK(equal(found[1], 0, 1, {{{0, 2}}, {{3, 4}}}));
  CHECK(equal(found[2], 1, 0, {{{2, 4}}, {{0, 3}}}));
  CHECK(equal(found[3], 1, 1, {{{2, 4}}, {{3, 4}}}));
}

void strided_tiles_meet_in_several_runs() {
  const auto found = cells({{{{0, 2}, {4, 6}}}, {{{2, 4}, {6, 8}}}}, {{{{1, 7}}}});
  CHECK(found.size() == 2);
  CHECK(equal(found[0], 0, 0, {{{1, 2}, {4, 6}}}));
  CHECK(equal(found[1], 1, 0, {{{2, 4}, {6, 7}}}));
}

void a_scalar_is_one_cell() {
  const auto found = cells({{}}, {{}});
  CHECK(found.size() == 1);
  CHECK(equal(found[0], 0, 0, {}));
}

void what_does_not_meet_is_no_cell() {
  CHECK(cells({}, {{{{0, 1}}}}).empty());
  CHECK(cells({{{{0, 1}}}}, {}).empty());
  CHECK(cells({{{{0, 4}}}}, {{{{4, 8}}}}).empty());
}

void the_largest_positions_do_not_overflow() {
  const auto found = cells({{{{0, kMost}}}}, {{{{kMost - 1, kMost}}}});
  CHECK(found.size() == 1);
  CHECK(equal(found[0], 0, 0, {{{kMost - 1, kMost}}}));
}

void more_boxes_than_allowed_are_refused() {
  const Tile halves{{{0, 1}, {2, 3}}, {{0, 1}, {2, 3}}};
  const std::vector<Tile> whole{{{{0, 3}}, {{0, 3}}}};
  CHECK(crossmesh::cells({halves}, whole, 4).size() == 1);
  CHECK_REFUSES(crossmesh::cells({halves}, whole, 3), "in at most 3 boxes");
  CHECK_REFUSES(crossmesh::cells({{}}, {{}}, 0), "in at most 0 boxes");
}

void tiles_that_no_layout_has_are_refused() {
  const std::vector<Tile> whole{{{{0, 8}}}};
  CHECK_REFUSES(cells(whole, {{}}), "all tiles have the same dims; got 0 and 1");
  CHECK_REFUSES(cells({{Runs{}}}, whole), "got a dim without an interval");
  CHECK_REFUSES(cells({{{{-1, 2}}}}, whole), "rise; got -1:2 after 0");
  CHECK_REFUSES(cells({{{{2, 2}}}}, whole), "rise; got 2:2 after 0");
  CHECK_REFUSES(cells({{{{2, 4}, {3, 5}}}}, whole), "rise; got 3:5 after 4");
  CHECK_REFUSES(cells(whole, {{{{0, 3}}}, {{{2, 8}}}}), "got 0:3 and 2:8 in dim 0");
  CHECK_REFUSES(cells(whole, {whole[0], whole[0]}), "tiles of a side are distinct");
}

}  // namespace

int main() {
  rows_and_columns_meet_in_boxes();
  strided_tiles_meet_in_several_runs();
  a_scalar_is_one_cell();
  what_does_not_meet_is_no_cell();
  the_largest_positions_do_not_overflow();
  more_boxes_than_allowed_are_refused();
  tiles_that_no_layout_has_are_refused();
}
