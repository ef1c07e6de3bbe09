#include "crossmesh/search.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "crossmesh/depth_first.hpp"
#include "crossmesh/greedy.hpp"

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
    others = flow.senders[0];
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    others.erase(std::remove(others.begin(), others.end(), send.path[0]), others.end());
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
  const double bound_s = lower_bound_s(problem.flows(), problem.network().rates);
  Plan best{std::numeric_limits<double>::infinity(), {}};
  for (const bool whole : {true, false}) {
    if (best.end_s <= bound_s / kBelow || (!whole && !cut)) {
      break;
    }
    std::vector<Send> sends = whole ? balanced(problem) : shared(problem);
    for (const bool in_chunks : {true, false}) {
      if (!in_chunks && (problem.strategy() != Strategy::broadcast || problem.n_chunks() == 1)) {
        break;
      }
      for (Send& send : sends) {
        send.n_chunks = in_chunks ? problem.n_chunks() : 1;
      }
      const double earliest_s =
          whole ? bound_s : floor_s(problem.passages(sends), problem.n_ports());
      if (earliest_s < best.end_s * kWorth) {
        Plan found = ordered(problem, sends, method, earliest_s / kBelow, whole, seed, steps);
        if (found.end_s < best.end_s * kWorth || best.sends.empty()) {
          best = std::move(found);
        }
      }
    }
  }
  return best.sends;
}

}  // namespace crossmesh
