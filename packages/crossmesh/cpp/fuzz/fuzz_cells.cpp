// For any tiles, `cells` either returns the same as trying all pairs, or refuses them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <vector>

#include "crossmesh/cells.hpp"

namespace {

using crossmesh::Cell;
using crossmesh::Interval;
using crossmesh::Runs;
using crossmesh::Tile;

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}
  std::uint8_t next() { return data_ == end_ ? 0 : *data_++; }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

std::int64_t position(Bytes& bytes) {
  const std::uint8_t byte = bytes.next();
  if (byte >= 254) {
    return byte == 254 ? std::numeric_limits<std::int64_t>::max()
                       : std::numeric_limits<std::int64_t>::min();
  }
  return byte < 250 ? byte : -1;
}

// Half of the inputs are tiles like those of layouts, cut by a grid; the others are arbitrary.
std::vector<Tile> grid(Bytes& bytes, std::size_t rank) {
  std::vector<std::vector<Runs>> parts(rank);
  for (auto& of_dim : parts) {
    of_dim.resize(1 + bytes.next() % 3);
    std::int64_t at = 0;
    for (std::size_t cut = bytes.next() % 8; cut > 0; --cut) {
      const std::int64_t stop = at + 1 + bytes.next() % 4;
      of_dim[bytes.next() % of_dim.size()].push_back({at, stop});
      at = stop + bytes.next() % 2;
    }
    of_dim.erase(std::remove(of_dim.begin(), of_dim.end(), Runs{}), of_dim.end());
  }
  std::vector<Tile> tiles{{}};
  for (const auto& of_dim : parts) {
    std::vector<Tile> longer;
    for (const Tile& tile : tiles) {
      for (const Runs& runs : of_dim) {
        longer.push_back(tile);
        longer.back().push_back(runs);
      }
    }
    tiles = longer;
  }
  // Remove some: `cells` must not rely on having all combinations.
  tiles.erase(std::remove_if(tiles.begin(), tiles.end(),
                             [&](const Tile&) { return bytes.next() % 4 == 1; }),
              tiles.end());
  return tiles;
}

std::vector<Tile> anything(Bytes& bytes, std::size_t rank) {
  std::vector<Tile> tiles(bytes.next() % 4);
  for (Tile& tile : tiles) {
    tile.resize(bytes.next() == 7 ? rank + 1 : rank);
    for (Runs& runs : tile) {
      runs.resize(bytes.next() % 3);
      for (Interval& interval : runs) {
        interval = {position(bytes), position(bytes)};
      }
    }
  }
  return tiles;
}

Tile common(const Tile& a, const Tile& b) {
  Tile both(a.size());
  for (std::size_t dim = 0; dim < a.size(); ++dim) {
    for (const Interval& x : a[dim]) {
      for (const Interval& y : b[dim]) {
        const Interval cut{std::max(x.start, y.start), std::min(x.stop, y.stop)};
        if (cut.start < cut.stop) {
          both[dim].push_back(cut);
        }
      }
    }
  }
  return both;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const bool valid = bytes.next() % 2 == 0;
  const std::size_t rank = bytes.next() % 4;
  const auto src = valid ? grid(bytes, rank) : anything(bytes, rank);
  const auto dst = valid ? grid(bytes, rank) : anything(bytes, rank);
  std::vector<Cell> found;
  try {
    found = crossmesh::cells(src, dst, 1 << 20);
  } catch (const std::invalid_argument&) {
    if (valid) {
      std::abort();
    }
    return 0;
  }
  std::size_t next = 0;
  for (std::size_t s = 0; s < src.size(); ++s) {
    for (std::size_t d = 0; d < dst.size(); ++d) {
      const Tile both = common(src[s], dst[d]);
      if (std::find(both.begin(), both.end(), Runs{}) != both.end()) {
        continue;
      }
      if (next == found.size() || found[next].src != s || found[next].dst != d ||
          found[next].common != both) {
        std::abort();
      }
      ++next;
    }
  }
  if (next != found.size()) {
    std::abort();
  }
  return 0;
}
