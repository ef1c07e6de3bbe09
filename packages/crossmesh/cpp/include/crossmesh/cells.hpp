// Cells: the intersections of the tiles of a source and of a destination layout.
#pragma once

#include <cstddef>
#include <vector>

#include "crossmesh/box.hpp"

namespace crossmesh {

/// The intervals of a tile in one dim, in ascending order; none is empty.
using Runs = std::vector<Interval>;

/// The runs of each dim; the tile is their Cartesian product. A tensor without dims has the tile
/// `{}`.
using Tile = std::vector<Runs>;

/// The intersection of one source tile and one destination tile.
struct Cell {
  std::size_t src;  ///< index of the source tile
  std::size_t dst;  ///< index of the destination tile
  Tile common;      ///< the common runs of every dim
};

/// All pairs of a source and a destination tile with a common element, by source, then destination.
///
/// In each dim, two tiles of one side have either the same runs or no common index. The tiles of
/// every layout do, because each dim is cut independently. So time and memory grow with the number
/// of tiles and of cells (times a logarithm), not with the number of pairs of tiles.
///
/// Throws std::invalid_argument if tiles differ in their number of dims, a dim has no runs, runs
/// are empty, negative or not ascending, two tiles of a side are equal, two tiles of a side overlap
/// in a dim in which their runs differ, or there are more than `most_boxes` boxes. For this last
/// check, boxes are counted as if each side had tiles of all combinations of its runs, as layouts
/// have. If a side has no tiles, the other one is not checked.
///
/// Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023,
/// section 2.2. There a unit task is a whole source slice; here it is cut where destination tiles
/// cut it, so that no device receives bytes that it does not need.
std::vector<Cell> cells(const std::vector<Tile>& src, const std::vector<Tile>& dst,
                        std::size_t most_boxes);

}  // namespace crossmesh
