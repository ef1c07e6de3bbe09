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
#include "crossmesh/copy.hpp"
#include "crossmesh/order.hpp"
#include "crossmesh/tasks.hpp"

namespace py = pybind11;
using namespace py::literals;
using crossmesh::Index;

namespace {

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
using Hosts = std::map<std::int64_t, std::int64_t>;
using Shards = std::vector<std::pair<std::int64_t, Pairs>>;
using Tasks = std::vector<std::tuple<Pairs, Index, Index>>;

std::vector<crossmesh::Shard> to_shards(const Shards& pairs) {
  std::vector<crossmesh::Shard> shards;
  for (const auto& [device, slices] : pairs) {
    crossmesh::Box box;
    for (const auto& [start, stop] : slices) {
      box.push_back({start, stop});
    }
    shards.push_back({device, std::move(box)});
  }
  return shards;
}

Tasks unit_tasks(const Index& shape, const Shards& src, const Shards& dst, const Hosts& host_of,
                 bool one_receiver) {
  Tasks tasks;
  for (auto& task :
       crossmesh::unit_tasks(shape, to_shards(src), to_shards(dst), host_of, one_receiver)) {
    Pairs slices;
    for (const auto& interval : task.box) {
      slices.emplace_back(interval.start, interval.stop);
    }
    tasks.emplace_back(std::move(slices), std::move(task.senders), std::move(task.receivers));
  }
  return tasks;
}

std::vector<std::int64_t> balance(const std::vector<std::int64_t>& n_bytes,
                                  const std::vector<Index>& sender_hosts,
                                  const std::vector<Index>& receiver_hosts,
                                  const crossmesh::Rates& rates) {
  if (sender_hosts.size() != n_bytes.size() || receiver_hosts.size() != n_bytes.size()) {
    throw std::invalid_argument("n_bytes, sender_hosts and receiver_hosts have one entry a flow");
  }
  std::vector<crossmesh::Flow> flows;
  for (std::size_t i = 0; i < n_bytes.size(); ++i) {
    flows.push_back({n_bytes[i], sender_hosts[i], receiver_hosts[i]});
  }
  return crossmesh::balance(flows, rates);
}

std::vector<crossmesh::Job> to_jobs(const std::vector<double>& durations_s,
                                    const std::vector<Index>& ports,
                                    const std::vector<std::int64_t>& n_devices) {
  if (ports.size() != durations_s.size() || n_devices.size() != durations_s.size()) {
    throw std::invalid_argument("durations_s, ports and n_devices have one entry a job");
  }
  std::vector<crossmesh::Job> jobs;
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

  m.def("unit_tasks", &unit_tasks, "shape"_a, "src"_a, "dst"_a, "host_of"_a, "one_receiver"_a,
        unlocked, "Cut a transfer into (slices, senders, receivers); shards are (device, slices).");
  m.def("balance", &balance, "n_bytes"_a, "sender_hosts"_a, "receiver_hosts"_a, "rates"_a, unlocked,
        "Choose a sender host for each flow, largest first, where it would be sent earliest.");
  m.def("order_jobs", &order_jobs, "durations_s"_a, "ports"_a, "n_devices"_a, unlocked,
        "Order jobs so that many that share no port run at the same time.");
  m.def("finish_s", &finish_s, "durations_s"_a, "ports"_a, "order"_a, unlocked,
        "When the last job ends, if each in turn starts as soon as its ports are free.");
  m.def("copy_box", &copy_box, "dst"_a, "dst_start"_a, "src"_a, "src_start"_a, "extent"_a,
        "Copy a box of elements between two arrays of one dtype and any strides.");
}
