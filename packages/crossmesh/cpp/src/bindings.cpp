// The Python module `crossmesh._core`: converts arguments, names them, and releases the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "crossmesh/cells.hpp"
#include "crossmesh/copy.hpp"

namespace py = pybind11;
using namespace py::literals;
using crossmesh::Index;

void bind_search(py::module_& m);  // bindings_search.cpp

namespace {

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
using Tiles = std::vector<std::vector<Pairs>>;
using Cells = std::vector<std::tuple<std::size_t, std::size_t, std::vector<Pairs>>>;

std::vector<crossmesh::Tile> to_tiles(const Tiles& pairs) {
  std::vector<crossmesh::Tile> tiles;
  for (const auto& of_tile : pairs) {
    crossmesh::Tile tile;
    for (const auto& of_dim : of_tile) {
      crossmesh::Runs runs;
      for (const auto& [start, stop] : of_dim) {
        runs.push_back({start, stop});
      }
      tile.push_back(std::move(runs));
    }
    tiles.push_back(std::move(tile));
  }
  return tiles;
}

Cells cells(const Tiles& src, const Tiles& dst, std::size_t most_boxes) {
  Cells found;
  for (const auto& cell : crossmesh::cells(to_tiles(src), to_tiles(dst), most_boxes)) {
    std::vector<Pairs> common;
    for (const auto& runs : cell.common) {
      Pairs of_dim;
      for (const auto& interval : runs) {
        of_dim.emplace_back(interval.start, interval.stop);
      }
      common.push_back(std::move(of_dim));
    }
    found.emplace_back(cell.src, cell.dst, std::move(common));
  }
  return found;
}

template <typename Byte>
crossmesh::View<Byte> view(const py::array& array, Byte* data) {
  return {data, Index(array.shape(), array.shape() + array.ndim()),
          Index(array.strides(), array.strides() + array.ndim())};
}

void check_plain(const py::array& array) {
  if (py::cast<bool>(array.dtype().attr("hasobject"))) {
    throw std::invalid_argument("arrays of Python objects cannot be copied as bytes");
  }
}

void copy_box(py::array& dst, const Index& dst_start, const py::array& src, const Index& src_start,
              const Index& extent) {
  if (!dst.dtype().is(src.dtype()) && !dst.dtype().equal(src.dtype())) {
    throw std::invalid_argument("source and destination must have the same dtype");
  }
  check_plain(src);
  const auto to = view(dst, static_cast<std::byte*>(dst.mutable_data()));
  const auto from = view(src, static_cast<const std::byte*>(src.data()));
  const auto itemsize = static_cast<std::int64_t>(src.itemsize());
  const py::gil_scoped_release unlocked;
  crossmesh::copy_box(to, dst_start, from, src_start, extent, itemsize);
}

// The number of bytes of an array that has one dim, items of one byte, and no gaps.
std::int64_t packed_bytes(const py::array& array) {
  if (array.ndim() != 1 || array.itemsize() != 1 || (array.size() > 1 && array.strides(0) != 1)) {
    throw std::invalid_argument("packed bytes are an array of one dim, contiguous, of itemsize 1");
  }
  return array.size();
}

void pack(py::array& dst, const py::array& src, std::int64_t first) {
  check_plain(src);
  const std::int64_t count = packed_bytes(dst);
  auto* const to = static_cast<std::byte*>(dst.mutable_data());
  const auto from = view(src, static_cast<const std::byte*>(src.data()));
  const auto itemsize = static_cast<std::int64_t>(src.itemsize());
  const py::gil_scoped_release unlocked;
  crossmesh::pack(to, from, first, count, itemsize);
}

void unpack(py::array& dst, std::int64_t first, const py::array& src) {
  check_plain(dst);
  const std::int64_t count = packed_bytes(src);
  const auto to = view(dst, static_cast<std::byte*>(dst.mutable_data()));
  const auto* const from = static_cast<const std::byte*>(src.data());
  const auto itemsize = static_cast<std::int64_t>(dst.itemsize());
  const py::gil_scoped_release unlocked;
  crossmesh::unpack(to, first, from, count, itemsize);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Geometry, search and copies of crossmesh.";
  const auto unlocked = py::call_guard<py::gil_scoped_release>();

  m.def("cells", &cells, "src"_a, "dst"_a, "most_boxes"_a, unlocked,
        "What source and destination tiles have in common: (source, destination, runs of each dim)."
        " A tile has for each dim its intervals.");
  m.def("copy_box", &copy_box, "dst"_a, "dst_start"_a, "src"_a, "src_start"_a, "extent"_a,
        "Copy a box of elements between two arrays of one dtype and any strides.");
  m.def("pack", &pack, "dst"_a, "src"_a, "first"_a,
        "Copy bytes of an array's elements, from byte `first` in C order on, to all of `dst`.");
  m.def("unpack", &unpack, "dst"_a, "first"_a, "src"_a,
        "Copy all of `src` to an array's elements, from byte `first` in C order on.");
  bind_search(m);
}
