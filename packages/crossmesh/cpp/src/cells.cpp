#include "crossmesh/cells.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace crossmesh {
namespace {

// The distinct runs of a dim are numbered; a tile is one number for each dim.
using Part = std::size_t;
using Parts = std::vector<Part>;

struct Owned {
  Interval interval;
  Part part;
};

struct Match {
  Part dst;
  Runs common;
};

// For each source part of a dim, its intersections with destination parts, by destination part.
using Matches = std::vector<std::vector<Match>>;

void check_runs(const Runs& runs) {
  if (runs.empty()) {
    throw std::invalid_argument("a tile has elements; got a dim without an interval");
  }
  std::int64_t last = 0;
  for (const Interval& interval : runs) {
    if (interval.start < last || interval.stop <= interval.start) {
      throw std::invalid_argument(
          "the intervals of a dim are not negative, not empty, and rise; got " +
          to_string(interval) + " after " + std::to_string(last));
    }
    last = interval.stop;
  }
}

// The intervals of all distinct runs of one side in one dim, sorted; checks that they are disjoint.
std::vector<Owned> number_parts(const std::vector<Tile>& tiles, std::size_t dim,
                                std::vector<Parts>& parts_of) {
  std::map<Runs, Part> number;
  for (const Tile& tile : tiles) {
    check_runs(tile[dim]);
    number.emplace(tile[dim], 0);
  }
  std::vector<Owned> intervals;
  Part next = 0;
  for (auto& [runs, part] : number) {
    part = next++;
    for (const Interval& interval : runs) {
      intervals.push_back({interval, part});
    }
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const Owned& a, const Owned& b) { return a.interval < b.interval; });
  for (std::size_t i = 1; i < intervals.size(); ++i) {
    if (intervals[i].interval.start < intervals[i - 1].interval.stop) {
      throw std::invalid_argument("tiles are equal or disjoint in each dim; got " +
                                  to_string(intervals[i - 1].interval) + " and " +
                                  to_string(intervals[i].interval) + " in dim " +
                                  std::to_string(dim));
    }
  }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    parts_of[i].push_back(number.at(tiles[i][dim]));
  }
  return intervals;
}

// Sweeps over both sides at once; the time grows as the number of intervals, because those of a
// side are disjoint.
Matches match(const std::vector<Owned>& src, const std::vector<Owned>& dst, std::size_t n_src) {
  std::vector<std::map<Part, Runs>> common(n_src);
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < src.size() && j < dst.size()) {
    const Interval& a = src[i].interval;
    const Interval& b = dst[j].interval;
    const Interval both{std::max(a.start, b.start), std::min(a.stop, b.stop)};
    if (both.start < both.stop) {
      common[src[i].part][dst[j].part].push_back(both);
    }
    a.stop < b.stop ? ++i : ++j;
  }
  Matches matches(n_src);
  for (Part part = 0; part < n_src; ++part) {
    for (auto& [other, runs] : common[part]) {
      matches[part].push_back({other, std::move(runs)});
    }
  }
  return matches;
}

// Indices of tiles, sorted by their parts.
std::vector<std::size_t> sorted_distinct(const std::vector<Parts>& parts_of) {
  std::vector<std::size_t> order(parts_of.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return parts_of[a] < parts_of[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (parts_of[order[i]] == parts_of[order[i - 1]]) {
      throw std::invalid_argument("the tiles of a side are distinct; got number " +
                                  std::to_string(order[i - 1]) + " again as number " +
                                  std::to_string(order[i]));
    }
  }
  return order;
}

// Destination tiles with the same parts in the first dims: a range of the sorted tiles, and the
// runs that they have in common with the source tile in each of these dims.
struct Candidates {
  std::vector<std::size_t>::const_iterator begin;
  std::vector<std::size_t>::const_iterator end;
  std::vector<const Runs*> common;
};

// Counts the boxes before any is made. The tiles of layouts are all combinations of their parts, so
// the count is exact; for other tiles it may be too high.
void check_number(const std::vector<Parts>& src_parts, const std::vector<Matches>& matches,
                  std::size_t most_boxes) {
  std::size_t left = most_boxes;
  for (const Parts& parts : src_parts) {
    std::size_t boxes = 1;
    bool too_many = left == 0;
    for (std::size_t dim = 0; dim < matches.size() && boxes > 0; ++dim) {
      std::size_t runs = 0;
      for (const Match& shared : matches[dim][parts[dim]]) {
        runs += shared.common.size();
      }
      too_many = runs > 0 && (too_many || boxes > left / runs);
      boxes = too_many ? 1 : boxes * runs;
    }
    if (too_many) {
      throw std::invalid_argument("tiles meet in at most " + std::to_string(most_boxes) +
                                  " boxes; got more, of so many or so finely strided tiles");
    }
    left -= boxes;
  }
}

}  // namespace

std::vector<Cell> cells(const std::vector<Tile>& src, const std::vector<Tile>& dst,
                        std::size_t most_boxes) {
  if (src.empty() || dst.empty()) {
    return {};
  }
  const std::size_t rank = src.front().size();
  for (const auto* tiles : {&src, &dst}) {
    for (const Tile& tile : *tiles) {
      if (tile.size() != rank) {
        throw std::invalid_argument("all tiles have the same dims; got " +
                                    std::to_string(tile.size()) + " and " + std::to_string(rank));
      }
    }
  }
  std::vector<Parts> src_parts(src.size());
  std::vector<Parts> dst_parts(dst.size());
  std::vector<Matches> matches;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    const auto held = number_parts(src, dim, src_parts);
    const auto needed = number_parts(dst, dim, dst_parts);
    Part n_src = 0;
    for (const Owned& owned : held) {
      n_src = std::max(n_src, owned.part + 1);
    }
    matches.push_back(match(held, needed, n_src));
  }
  sorted_distinct(src_parts);
  const std::vector<std::size_t> sorted = sorted_distinct(dst_parts);
  check_number(src_parts, matches, most_boxes);

  std::vector<Cell> found;
  for (std::size_t s = 0; s < src.size(); ++s) {
    std::vector<Candidates> level{{sorted.begin(), sorted.end(), {}}};
    for (std::size_t dim = 0; dim < rank; ++dim) {
      std::vector<Candidates> next;
      for (const Candidates& candidates : level) {
        for (const Match& shared : matches[dim][src_parts[s][dim]]) {
          const auto begin = std::lower_bound(
              candidates.begin, candidates.end, shared.dst,
              [&](std::size_t tile, Part part) { return dst_parts[tile][dim] < part; });
          const auto end = std::upper_bound(
              begin, candidates.end, shared.dst,
              [&](Part part, std::size_t tile) { return part < dst_parts[tile][dim]; });
          if (begin != end) {
            next.push_back({begin, end, candidates.common});
            next.back().common.push_back(&shared.common);
          }
        }
      }
      level = std::move(next);
    }
    const std::size_t first = found.size();
    for (const Candidates& candidates : level) {
      Cell cell{s, *candidates.begin, {}};
      for (const Runs* runs : candidates.common) {
        cell.common.push_back(*runs);
      }
      found.push_back(std::move(cell));
    }
    std::sort(found.begin() + static_cast<std::ptrdiff_t>(first), found.end(),
              [](const Cell& a, const Cell& b) { return a.dst < b.dst; });
  }
  return found;
}

}  // namespace crossmesh
