// The Python module `autoshard._core`: converts values, names arguments, releases the GIL, and lets
// Ctrl-C end long calls.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "autoshard/dual.hpp"
#include "autoshard/eliminate.hpp"
#include "autoshard/search.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace autoshard;

namespace {

constexpr double kMostWork = 1e9;  // additions in one call, which Ctrl-C cannot interrupt

template <typename Value>
using Array = py::array_t<Value, py::array::c_style | py::array::forcecast>;
using Unlocked = py::gil_scoped_release;

/// Lets Ctrl-C end code that runs without the GIL; checks about every 20 ms.
class Signals {
 public:
  void operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(20)) return;
    last_ = now;
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// A reduced problem with its flat arrays; immutable.
struct Instance {
  explicit Instance(Reduced given) : reduced(std::move(given)), model(reduced) {}
  Reduced reduced;
  Model model;
};

template <typename Value>
py::array_t<Value> to_array(const std::vector<Value>& values) {
  return py::array_t<Value>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename Value>
std::size_t size(const Array<Value>& array) {
  return static_cast<std::size_t>(array.size());
}

/// The arrays of a problem, which live as long as this does.
struct Arrays {
  Array<std::int64_t> n_strategies;
  Array<double> costs, usages;
  Array<std::int64_t> intervals, edges;
  Array<double> tables;
  Array<std::int64_t> table_starts;
  double limit;

  Problem checked() const {
    Problem problem;
    problem.n_nodes = size(n_strategies);
    problem.n_strategies = n_strategies.data();
    problem.costs = costs.data();
    problem.usages = usages.data();
    problem.intervals = intervals.data();
    problem.n_edges = size(table_starts);
    problem.edges = edges.data();
    problem.tables = tables.data();
    problem.table_starts = table_starts.data();
    problem.n_costs = size(costs);
    problem.n_table_entries = size(tables);
    problem.limit = limit;
    if (size(usages) != size(costs) || size(intervals) != 2 * problem.n_nodes ||
        size(edges) != 2 * problem.n_edges) {
      throw std::invalid_argument(
          "a usage for each cost, two ends for each interval and edge; got " +
          std::to_string(size(usages)) + " usages for " + std::to_string(size(costs)) + " costs, " +
          std::to_string(size(intervals)) + " ends of " + std::to_string(problem.n_nodes) +
          " intervals and " + std::to_string(size(edges)) + " of " +
          std::to_string(problem.n_edges) + " edges");
    }
    const Unlocked unlocked;
    problem.check();
    return problem;
  }
};

std::unique_ptr<Instance> reduced(const Arrays& arrays) {
  const Problem problem = arrays.checked();
  const Unlocked unlocked;
  return std::make_unique<Instance>(reduce(problem, Signals()));
}

/// The cheapest choice for each strategy of `root`, shape (strategies, nodes), without the limit.
py::object decided_by(const Arrays& arrays, Node root, double entries) {
  const Problem problem = arrays.checked();
  if (root < 0 || static_cast<std::size_t>(root) >= problem.n_nodes) {
    throw std::invalid_argument("root is one of " + std::to_string(problem.n_nodes) +
                                " nodes; got " + std::to_string(root));
  }
  std::vector<Labels> choices;
  bool fits = false;
  {
    const Unlocked unlocked;
    const Model model(as_it_is(problem));
    fits = Eliminator(model).decide(model.costs.data(), root, entries, choices);
  }
  if (!fits) return py::none();
  py::array_t<Label> result({choices.size(), problem.n_nodes});
  Label* to = result.mutable_data();
  for (const Labels& choice : choices) to = std::copy(choice.begin(), choice.end(), to);
  return result;
}

std::unique_ptr<Instance> without(const Instance& instance, const Array<bool>& dropped) {
  if (size(dropped) != instance.model.costs.size()) {
    throw std::invalid_argument("dropped has one flag a label; got " +
                                std::to_string(size(dropped)) + " for " +
                                std::to_string(instance.model.costs.size()));
  }
  const std::vector<char> flags(dropped.data(), dropped.data() + dropped.size());
  const Unlocked unlocked;
  return std::make_unique<Instance>(reduce(Reduced(instance.reduced), flags, Signals()));
}

const Labels& checked(const Model& model, const Labels& labels) {
  if (labels.size() != model.n) {
    throw std::invalid_argument("a choice has one label a node; got " +
                                std::to_string(labels.size()) + " for " +
                                std::to_string(model.n) + " nodes");
  }
  for (std::size_t v = 0; v < model.n; ++v) {
    if (labels[v] < 0 || static_cast<std::size_t>(labels[v]) >= model.width(v)) {
      throw std::invalid_argument("node " + std::to_string(v) + " has labels 0 to " +
                                  std::to_string(model.width(v) - 1) + "; got " +
                                  std::to_string(labels[v]));
    }
  }
  return labels;
}

const Reals& checked_prices(const Model& model, const Reals& prices) {
  if (prices.size() != model.rows ||
      !std::all_of(prices.begin(), prices.end(),
                   [](double price) { return price >= 0.0 && std::isfinite(price); })) {
    throw std::invalid_argument("every row has a finite price >= 0; got " +
                                std::to_string(prices.size()) + " prices for " +
                                std::to_string(model.rows) + " rows");
  }
  return prices;
}

py::array_t<Label> locate(const Instance& instance, const std::vector<std::int64_t>& choice) {
  if (choice.size() != instance.reduced.n_original) {
    throw std::invalid_argument("a choice has one strategy a node; got " +
                                std::to_string(choice.size()) + " for " +
                                std::to_string(instance.reduced.n_original) + " nodes");
  }
  return to_array(instance.reduced.locate(choice));
}

/// Prices for the rows of this instance, given prices for the rows of another one.
py::array_t<double> carry(const Instance& instance, const Instance& from, const Reals& prices) {
  checked_prices(from.model, prices);
  Reals carried(instance.model.rows, 0.0);
  const auto &times = instance.reduced.memory.times, &old = from.reduced.memory.times;
  for (std::size_t row = 0; row < prices.size() && !times.empty(); ++row) {
    const auto next = std::upper_bound(times.begin(), times.end(), old[row]);
    carried[static_cast<std::size_t>(std::max(next - times.begin(), std::ptrdiff_t{1}) - 1)] +=
        prices[row];
  }
  return to_array(carried);
}

py::object eliminate(const Instance& instance, double entries) {
  Labels labels(instance.model.n, 0);
  std::vector<Node> all(instance.model.n);
  std::iota(all.begin(), all.end(), 0);
  Random random(0);  // never used: no node is held
  std::size_t held = 0;
  {
    const Unlocked unlocked;
    held = Eliminator(instance.model)
               .run(instance.model.costs.data(), all, entries, -1, random, labels, true);
  }
  return held > 0 ? py::object(py::none()) : py::object(to_array(labels));
}

/// The reduced problem as costs, edges (i, j, table), pieces (node, first row, last row, usage),
/// and the fixed usage of each row.
py::tuple parts(const Instance& instance) {
  const Reduced& reduced = instance.reduced;
  py::list costs, edges, pieces;
  for (const auto& cost : reduced.costs) costs.append(to_array(cost));
  for (const auto& edge : reduced.edges) {
    const auto rows = reduced.costs[static_cast<std::size_t>(edge.i)].size();
    edges.append(py::make_tuple(
        edge.i, edge.j,
        to_array(edge.table).reshape({static_cast<py::ssize_t>(rows), py::ssize_t{-1}})));
  }
  for (std::size_t v = 0; v < reduced.pieces.size(); ++v) {
    for (const auto& piece : reduced.pieces[v]) {
      pieces.append(py::make_tuple(v, piece.first, piece.last, to_array(piece.usage)));
    }
  }
  return py::make_tuple(costs, edges, pieces, to_array(instance.model.fixed));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Reduction, bounds and search of autoshard; `autoshard.solvers.auto` puts them together.";

  py::class_<Arrays>(m, "Arrays", "A problem's arrays; an edge's table begins at its start.")
      .def(py::init<Array<std::int64_t>, Array<double>, Array<double>, Array<std::int64_t>,
                    Array<std::int64_t>, Array<double>, Array<std::int64_t>, double>(),
           "n_strategies"_a, "costs"_a, "usages"_a, "intervals"_a, "edges"_a, "tables"_a,
           "table_starts"_a, "limit"_a);
  m.def("decided_by", &decided_by, "arrays"_a, "root"_a, "entries"_a,
        "Per strategy of root the cheapest choice; None where a table would have more entries.");

  py::class_<Instance>(m, "Instance", "A problem after exact reduction.")
      .def(py::init(&reduced), "arrays"_a)
      .def("without", &without, "dropped"_a, "Reduce further without some labels (a flag each).")
      .def("eliminate", &eliminate, "entries"_a,
           "The optimum whatever the limit, or None where a table would have more entries.")
      .def("expand", [](const Instance& i, const Labels& labels) {
             return to_array(i.reduced.expand(checked(i.model, labels)));
           }, "labels"_a, "The choice of all original nodes that follows from labels.")
      .def("locate", &locate, "choice"_a, "The labels that a choice has here, -1 where dropped.")
      .def("carry", &carry, "old"_a, "prices"_a, "Prices of another instance's rows for the rows here.")
      .def("parts", &parts,
           "Costs, (i, j, table), (node, first row, last row, usage), fixed usage of each row.")
      .def_property_readonly("n_pieces", [](const Instance& i) { return i.model.spans.size(); })
      .def_property_readonly("limit", [](const Instance& i) { return i.model.limit; })
      .def_property_readonly("possible", [](const Instance& i) { return i.reduced.possible; })
      .def_property_readonly("n_nodes", [](const Instance& i) { return i.model.n; })
      .def_property_readonly("n_labels", [](const Instance& i) { return i.model.costs.size(); })
      .def_property_readonly("n_rows", [](const Instance& i) { return i.model.rows; })
      .def_property_readonly("n_entries", [](const Instance& i) { return i.model.tables.size() / 2; })
      .def_property_readonly("constant", [](const Instance& i) { return i.model.constant; });

  py::class_<Dual>(m, "Dual", "Lower bounds; costs are without the instance's constant.")
      .def(py::init([](const Instance& i) { return std::make_unique<Dual>(i.model); }), "instance"_a,
           py::keep_alive<1, 2>())
      .def("step", [](Dual& dual, double target, int n) {
             if (!std::isfinite(target)) throw std::invalid_argument("the target is finite");
             const Unlocked unlocked;
             Signals signals;
             for (int i = 0; i < n; ++i, signals()) dual.step(target);
           }, "target"_a, "n"_a)
      .def("try_prices", [](Dual& dual, const Reals& prices) {
             checked_prices(dual.model(), prices);
             const Unlocked unlocked;
             dual.try_prices(prices);
           }, "prices"_a)
      .def("dear", [](Dual& dual, double objective) {
             std::vector<char> flags;
             if (!std::isfinite(objective)) throw std::invalid_argument("the objective is finite");
             {
               const Unlocked unlocked;
               flags = dual.dear(objective);
             }
             py::array_t<bool> result(static_cast<py::ssize_t>(flags.size()));
             std::copy(flags.begin(), flags.end(), result.mutable_data());
             return result;
           }, "objective"_a, "Flags of labels whose every choice costs more.")
      .def_property_readonly("bound", &Dual::bound)
      .def_property_readonly("prices", [](const Dual& dual) { return to_array(dual.prices()); })
      .def_property_readonly("choice", [](const Dual& dual) { return to_array(dual.choice()); })
      .def_property_readonly("peak", &Dual::peak)
      .def_property_readonly("converged", &Dual::converged);

  py::class_<Search>(m, "Search", "Local search; costs are without the instance's constant.")
      .def(py::init([](const Instance& i, std::uint64_t seed) {
             return std::make_unique<Search>(i.model, seed);
           }), "instance"_a, "seed"_a, py::keep_alive<1, 2>())
      .def("start", [](Search& search, const Labels& labels, const Reals& prices) {
             search.start(checked(search.model(), labels), checked_prices(search.model(), prices));
           }, "labels"_a, "prices"_a)
      .def("aim", [](Search& search, const Reals& prices) {
             search.aim(checked_prices(search.model(), prices));
           }, "prices"_a)
      .def("sweep", [](Search& search) {
             const Unlocked unlocked;
             search.sweep();
           })
      .def("improve", [](Search& search, double work) {
             if (!(work <= kMostWork)) {
               throw std::invalid_argument("work is at most 1e9 additions, that is seconds; got " +
                                           std::to_string(work));
             }
             const Unlocked unlocked;
             search.improve(work);
           }, "work"_a)
      .def_property_readonly("best", [](const Search& search) { return to_array(search.best()); })
      .def_property_readonly("present", [](const Search& search) { return to_array(search.present()); })
      .def_property_readonly("best_cost", &Search::best_cost)
      .def_property_readonly("cost", &Search::cost)
      .def_property_readonly("peak", &Search::peak)
      .def_property_readonly("prices", [](const Search& search) { return to_array(search.prices()); });
}
