// The Python module `crossmesh._core`: converts, names arguments, releases the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "crossmesh/balance.hpp"
#include "crossmesh/cells.hpp"
#include "crossmesh/copy.hpp"
#include "crossmesh/order.hpp"

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

std::vector<std::int64_t> balance(const std::vector<std::int64_t>& n_bytes,
                                  const std::vector<Index>& sender_hosts,
                                  const std::vector<Index>& receiver_hosts,
                                  const crossmesh::Rates& rates) {
  if (sender_hosts.size() != n_bytes.size() || receiver_hosts.size() != n_bytes.size()) {
    throw std::invalid_argument("n_bytes, sender_hosts and receiver_hosts have one entry a flow");
  }
  std::vector<crossmesh::OldFlow> flows;
  for (std::size_t i = 0; i < n_bytes.size(); ++i) {
    flows.push_back({n_bytes[i], sender_hosts[i], receiver_hosts[i]});
  }
  return crossmesh::balance(flows, rates);
}

std::vector<crossmesh::OldJob> to_jobs(const std::vector<double>& durations_s,
                                    const std::vector<Index>& ports,
                                    const std::vector<std::int64_t>& n_devices) {
  if (ports.size() != durations_s.size() || n_devices.size() != durations_s.size()) {
    throw std::invalid_argument("durations_s, ports and n_devices have one entry a job");
  }
  std::vector<crossmesh::OldJob> jobs;
  for (std::size_t i = 0; i < durations_s.size(); ++i) {
    jobs.push_back({durations_s[i], ports[i], n_devices[i]});
  }
  return jobs;
}

std::vector<std::size_t> order_jobs(const std::vector<double>& durations_s,
                                    const std::vector<Index>& ports,
                                    const std::vector<std::int64_t>& n_devices) {
  return crossmesh::order_jobs(to_jobs(durations_s, ports, n_devices));
}

double finish_s(const std::vector<double>& durations_s, const std::vector<Index>& ports,
                const std::vector<std::size_t>& order) {
  const std::vector<std::int64_t> n_devices(durations_s.size(), 0);
  return crossmesh::finish_s(to_jobs(durations_s, ports, n_devices), order);
}

template <typename Byte>
crossmesh::View<Byte> view(const py::array& array, Byte* data) {
  return {data, Index(array.shape(), array.shape() + array.ndim()),
          Index(array.strides(), array.strides() + array.ndim())};
}

void copy_box(py::array& dst, const Index& dst_start, const py::array& src, const Index& src_start,
              const Index& extent) {
  if (!dst.dtype().is(src.dtype()) && !dst.dtype().equal(src.dtype())) {
    throw std::invalid_argument("source and destination must have the same dtype");
  }
  if (py::cast<bool>(src.dtype().attr("hasobject"))) {
    throw std::invalid_argument("arrays of Python objects cannot be copied as bytes");
  }
  const auto to = view(dst, static_cast<std::byte*>(dst.mutable_data()));
  const auto from = view(src, static_cast<const std::byte*>(src.data()));
  const auto itemsize = static_cast<std::int64_t>(src.itemsize());
  const py::gil_scoped_release unlocked;
  crossmesh::copy_box(to, dst_start, from, src_start, extent, itemsize);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Geometry, search and copies of crossmesh; crossmesh.reference says the same in Python.";
  const auto unlocked = py::call_guard<py::gil_scoped_release>();

  m.def("cells", &cells, "src"_a, "dst"_a, "most_boxes"_a, unlocked,
        "What source and destination tiles have in common: (source, destination, runs of each dim)."
        " A tile has for each dim its intervals.");
  m.def("balance", &balance, "n_bytes"_a, "sender_hosts"_a, "receiver_hosts"_a, "rates"_a, unlocked,
        "Choose a sender host for each flow, largest first, where it would be sent earliest.");
  m.def("order_jobs", &order_jobs, "durations_s"_a, "ports"_a, "n_devices"_a, unlocked,
        "Order jobs so that many that share no port run at the same time.");
  m.def("finish_s", &finish_s, "durations_s"_a, "ports"_a, "order"_a, unlocked,
        "When the last job ends, if each in turn starts as soon as its ports are free.");
  m.def("copy_box", &copy_box, "dst"_a, "dst_start"_a, "src"_a, "src_start"_a, "extent"_a,
        "Copy a box of elements between two arrays of one dtype and any strides.");
  bind_search(m);
}
