#include "crossmesh/search.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "crossmesh/bound.hpp"
#include "crossmesh/depth_first.hpp"
#include "crossmesh/greedy.hpp"
#include "crossmesh/senders.hpp"

namespace crossmesh {
namespace {

// Cut flows must end before this part of the time of whole ones.
constexpr double kWorth = 0.99;

struct Plan {
  double end_s;
  std::vector<Send> sends;
};

double end_in_order_s(const std::vector<Passage>& passages, std::size_t n_ports) {
  std::vector<double> free_s(n_ports, 0.0);
  double end_s = 0.0;
  for (const Passage& passed : passages) {
    const double at_s = start_s(passed, free_s);
    occupy(passed, at_s, free_s);
    end_s = std::max(end_s, at_s + passed.total_s);
  }
  return end_s;
}

// The hosts that could send a copy as well.
std::vector<Host> other_senders(const Flow& flow, const Send& send) {
  std::vector<Host> others;
  if (flow.senders.size() == 1 && send.path.size() > 1) {
    others = filtered(sorted_set(flow.senders[0]), [&](Host host) { return host != send.path[0]; });
  }
  return others;
}

Send sent_from(Send send, Host host) {
  send.senders = {host};
  send.path[0] = host;
  return send;
}

// The best that a depth-first search finds below `best`, else that.
Plan searched(const Problem& problem, const std::vector<Send>& sends,
              const std::vector<Passage>& passages, bool any_sender, Plan best,
              std::int64_t steps) {
  std::vector<std::vector<Send>> ways;
  std::vector<Class> classes;
  std::map<std::tuple<std::int64_t, std::vector<Host>, std::vector<Host>>, std::size_t> number;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Send& send = sends[i];
    std::vector<Host> others;
    if (any_sender) {
      others = other_senders(problem.flows()[send.flow], send);
    }
    auto& mine = ways.emplace_back(1, send);
    for (const Host host : others) {
      mine.push_back(sent_from(send, host));
    }
    const auto [found, is_new] =
        number.emplace(std::make_tuple(send.stop - send.start, send.path, others), classes.size());
    if (is_new) {
      classes.push_back({{}, {passages[i]}});
      for (std::size_t k = 1; k < mine.size(); ++k) {
        classes.back().ways.push_back(problem.passage(mine[k]));
      }
    }
    classes[found->second].sends.push_back(i);
  }
  const auto found = depth_first(classes, problem.n_ports(), best.end_s, steps);
  if (found) {
    best = {found->end_s, {}};
    for (const Step& step : found->steps) {
      best.sends.push_back(ways[step.send][step.way]);
    }
  }
  return best;
}

Plan ordered(const Problem& problem, const std::vector<Send>& sends, Method method, double goal_s,
             bool any_sender, std::uint64_t seed, std::int64_t steps) {
  const std::vector<Passage> passages = problem.passages(sends);
  Plan best;
  if (method == Method::dfs) {
    best = {end_in_order_s(passages, problem.n_ports()), sends};
  } else {
    std::vector<std::vector<Host>> paths;
    for (const Send& send : sends) {
      paths.push_back(send.path);
    }
    const Order order = greedy(passages, paths, problem.n_ports(), seed, steps);
    best.end_s = order.end_s;
    for (const std::size_t i : order.indices) {
      best.sends.push_back(sends[i]);
    }
  }
  if (method == Method::greedy || best.end_s <= goal_s) {
    return best;
  }
  return searched(problem, sends, passages, any_sender, std::move(best), steps);
}

// A flow for each host that a copy must reach, and which flow each of them is.
std::pair<std::vector<Flow>, std::vector<std::size_t>> apart(const Problem& problem) {
  std::vector<Flow> flows;
  std::vector<std::size_t> origin;
  for (std::size_t i = 0; i < problem.flows().size(); ++i) {
    const Flow& flow = problem.flows()[i];
    if (flow.senders.size() > 1 || problem.reached(i).size() < 2) {
      flows.push_back(flow);
      origin.push_back(i);
      continue;
    }
    for (const Host host : problem.reached(i)) {
      flows.push_back({flow.n_bytes, flow.itemsize, flow.senders, {host}, flow.chained});
      origin.push_back(i);
    }
  }
  return {std::move(flows), std::move(origin)};
}

// The best of the ways to choose senders, so far.
class Best {
 public:
  Best(Method method, std::uint64_t seed, std::int64_t steps)
      : method_(method), seed_(seed), steps_(steps) {}

  // Whether what ends at `earliest_s`, at best, is worth more sends.
  bool may_gain(double earliest_s) const { return earliest_s < end_s_ * kWorth; }

  void try_senders(const Problem& problem, bool whole, const std::vector<std::size_t>& origin) {
    const double bound_s = lower_bound_s(problem);
    if (!may_gain(bound_s)) {
      return;
    }
    const std::vector<Send> chosen = whole ? balanced(problem) : shared(problem);
    const double earliest_s =
        whole ? bound_s : floor_s(problem.passages(chosen), problem.n_ports());
    if (!may_gain(earliest_s)) {
      return;
    }
    Plan found = ordered(problem, chosen, method_, earliest_s / kBelow, whole, seed_, steps_);
    if (found.end_s < end_s_ * kWorth) {
      end_s_ = found.end_s;
      sends_ = std::move(found.sends);
      for (Send& send : sends_) {
        send.flow = origin[send.flow];
      }
    }
  }

  std::vector<Send> sends() && { return std::move(sends_); }

 private:
  Method method_;
  std::uint64_t seed_;
  std::int64_t steps_;
  double end_s_ = std::numeric_limits<double>::infinity();
  std::vector<Send> sends_;
};

}  // namespace

std::vector<Send> search(const Problem& problem, Method method, bool split, std::uint64_t seed,
                         std::int64_t steps) {
  if (method == Method::naive) {
    return naive(problem);
  }
  const bool cut = split && problem.strategy() != Strategy::signal;
  if (method == Method::load_balance || method == Method::all_at_once) {
    return cut ? shared(problem) : balanced(problem);
  }
  std::vector<std::size_t> itself(problem.flows().size());
  std::iota(itself.begin(), itself.end(), std::size_t{0});
  Best best(method, seed, steps);
  best.try_senders(problem, true, itself);
  if (cut) {
    best.try_senders(problem, false, itself);
  }
  if (problem.strategy() == Strategy::broadcast &&
      best.may_gain(lower_bound_s(problem))) {
    auto [flows, origin] = apart(problem);
    if (origin.size() > itself.size()) {
      const Problem other(std::move(flows), problem.network(), problem.strategy(),
                          problem.n_chunks());
      best.try_senders(other, true, origin);
      if (cut) {
        best.try_senders(other, false, origin);
      }
    }
  }
  return std::move(best).sends();
}

}  // namespace crossmesh
