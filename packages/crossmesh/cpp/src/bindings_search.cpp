// Search and simulation for the Python module `crossmesh._core`: converts arguments and names them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crossmesh/bound.hpp"
#include "crossmesh/search.hpp"
#include "crossmesh/simulate.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace {

using Hosts = std::vector<crossmesh::Host>;
using Rates = std::vector<double>;
using Flows = std::vector<std::tuple<std::int64_t, std::int64_t, std::vector<Hosts>, Hosts, bool>>;
using Sends =
    std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t, Hosts, Hosts, std::string>>;
using Jobs = std::vector<std::tuple<std::int64_t, Hosts, std::size_t, bool, std::string,
                                    std::int64_t, std::vector<std::size_t>>>;
using Hops = std::vector<std::tuple<crossmesh::Host, crossmesh::Host, double, double, double>>;

template <typename Value>
Value named(const std::map<std::string, Value>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) {
    std::string known;
    for (const auto& [key, value] : values) {
      known += (known.empty() ? "" : ", ") + key;
    }
    throw std::invalid_argument("there are " + known + "; got " + name);
  }
  return found->second;
}

crossmesh::Strategy to_strategy(const std::string& name) {
  using crossmesh::Strategy;
  return named<Strategy>({{"broadcast", Strategy::broadcast},
                          {"send_recv", Strategy::send_recv},
                          {"local_allgather", Strategy::local_allgather},
                          {"global_allgather", Strategy::global_allgather},
                          {"signal", Strategy::signal}},
                         name);
}

crossmesh::Method to_method(const std::string& name) {
  using crossmesh::Method;
  return named<Method>({{"naive", Method::naive},
                        {"load_balance", Method::load_balance},
                        {"dfs", Method::dfs},
                        {"greedy", Method::greedy},
                        {"ensemble", Method::ensemble},
                        {"all_at_once", Method::all_at_once}},
                       name);
}

std::string to_text(crossmesh::Route route) {
  using crossmesh::Route;
  return route == Route::tree ? "tree" : route == Route::relayed ? "relayed" : "pipelined";
}

std::vector<crossmesh::Flow> to_flows(const Flows& tuples) {
  std::vector<crossmesh::Flow> flows;
  for (const auto& [n_bytes, itemsize, senders, receivers, chained] : tuples) {
    flows.push_back({n_bytes, itemsize, senders, receivers, chained});
  }
  return flows;
}

Sends search(const Flows& flows, const Rates& rates, double latency_s, const std::string& strategy,
             std::int64_t n_chunks, std::int64_t chunk_bytes, const std::string& order, bool split,
             std::uint64_t seed, std::int64_t steps) {
  const crossmesh::Problem problem(to_flows(flows), {rates, latency_s}, to_strategy(strategy),
                                   n_chunks, chunk_bytes);
  Sends sends;
  for (auto& send : crossmesh::search(problem, to_method(order), split, seed, steps)) {
    sends.emplace_back(send.flow, send.start, send.stop, std::move(send.senders),
                       std::move(send.path), to_text(send.route));
  }
  return sends;
}

std::vector<std::pair<double, Hops>> simulate(const Jobs& tuples, const Rates& rates,
                                              double latency_s, bool together) {
  std::vector<crossmesh::Job> jobs;
  for (const auto& [n_bytes, path, n_adders, chained, strategy, n_chunks, tree] : tuples) {
    jobs.push_back({n_bytes, path, n_adders, chained, to_strategy(strategy), n_chunks, tree});
  }
  const crossmesh::Network network{rates, latency_s};
  std::vector<std::pair<double, Hops>> result;
  for (const auto& run : together ? crossmesh::simulate_together(jobs, network)
                                  : crossmesh::simulate_in_order(jobs, network)) {
    Hops hops;
    for (const crossmesh::Hop& hop : run.hops) {
      hops.emplace_back(hop.from, hop.to, hop.start_s, hop.duration_s, hop.n_bytes);
    }
    result.emplace_back(run.end_s, std::move(hops));
  }
  return result;
}

double lower_bound(const Flows& flows, const Rates& rates) {
  return crossmesh::lower_bound_s(
      crossmesh::Problem(to_flows(flows), {rates, 0.0}, crossmesh::Strategy::broadcast, 1));
}

}  // namespace

void bind_search(py::module_& m) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("search", &search, "flows"_a, "rates"_a, "latency_s"_a, "strategy"_a, "n_chunks"_a,
        "chunk_bytes"_a, "order"_a, "split"_a, "seed"_a, "steps"_a, unlocked,
        "Choose senders, cuts, paths and order: (flow, start, stop, senders, path, route) each.");
  m.def("simulate", &simulate, "jobs"_a, "rates"_a, "latency_s"_a, "together"_a, unlocked,
        "When each job ends, and its hops: (from, to, start_s, duration_s, n_bytes) each.");
  m.def("lower_bound", &lower_bound, "flows"_a, "rates"_a, unlocked,
        "Seconds that no choice of senders, forwarders, cuts and orders can beat.");
}
