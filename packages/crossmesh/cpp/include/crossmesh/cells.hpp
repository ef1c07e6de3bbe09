// Cells: what the tiles of a source and of a destination layout have in common.
#pragma once

#include <cstddef>
#include <vector>

#include "crossmesh/box.hpp"

namespace crossmesh {

/// The intervals that a tile has of one dim, rising, none empty.
using Runs = std::vector<Interval>;

/// For each dim its runs; the tile is their product. A tensor without dims has the tile `{}`.
using Tile = std::vector<Runs>;

/// What one source tile and one destination tile have in common.
struct Cell {
  std::size_t src;  ///< index of the source tile
  std::size_t dst;  ///< index of the destination tile
  Tile common;      ///< runs in every dim
};

/// All pairs of a source and a destination tile with a common element, by source, then destination.
///
/// In each dim two tiles of one side have the same runs or no index in common, as those of every
/// layout do: a dim is cut by itself. So time and memory grow with the tiles and the cells (times
/// a logarithm), not with the pairs of tiles.
///
/// Throws std::invalid_argument if tiles differ in their number of dims, a dim has no runs, runs
/// are empty, negative or do not rise, two tiles of a side are equal, two overlap in a dim without
/// being the same there, or the cells would consist of more than `most_boxes` boxes if the sides had
/// tiles of all combinations of runs, as layouts have. If a side has no tiles, the other is not
/// looked at.
///
/// Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023,
/// section 2.2. There a unit task is a whole source slice; here it is cut where destination tiles
/// cut it, so that nobody receives what it does not need.
std::vector<Cell> cells(const std::vector<Tile>& src, const std::vector<Tile>& dst,
                        std::size_t most_boxes);

}  // namespace crossmesh
