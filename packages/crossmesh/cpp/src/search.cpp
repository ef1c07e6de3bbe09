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
#include "crossmesh/ports.hpp"
#include "crossmesh/senders.hpp"

namespace crossmesh {
namespace {

// The number of parts of all flows together if they are relayed [chosen: while the first and the
// last parts are on their way, some ports are idle].
constexpr std::int64_t kParts = 256;

// Relaying needs so many sends that it is worth it only if it ends before this part of the time
// [chosen].
constexpr double kManyWorth = 0.96;

struct Plan {
  double end_s;
  std::vector<Send> sends;
};

double end_in_order_s(const std::vector<Passage>& passages, std::size_t n_ports) {
  Ports ports(n_ports);
  double end_s = 0.0;
  for (const Passage& passed : passages) {
    const double at_s = ports.start_s(passed);
    ports.occupy(passed, at_s);
    end_s = std::max(end_s, at_s + passed.total_s);
  }
  return end_s;
}

// The other hosts that could send a copy.
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

// The best plan that a depth-first search finds; `best` if it finds none that ends before it.
Plan searched(const Problem& problem, const std::vector<Send>& sends,
              const std::vector<Passage>& passages, bool any_sender, Plan best,
              std::int64_t steps) {
  std::vector<std::vector<Send>> ways;
  std::vector<Class> classes;
  // Sends are in one class if they take equally long on the same ports and have the same other
  // senders.
  const bool to_each_device = problem.strategy() == Strategy::send_recv ||
                              problem.strategy() == Strategy::global_allgather;
  using Hosts = std::vector<Host>;
  std::map<std::tuple<std::int64_t, Hosts, Hosts, Hosts, Hosts, bool>, std::size_t> number;
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
    const Flow& flow = problem.flows()[send.flow];
    const auto [found, is_new] = number.emplace(
        std::make_tuple(send.stop - send.start, send.path, others, send.senders,
                        to_each_device ? flow.receivers : Hosts{}, flow.chained),
        classes.size());
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
  const bool relays = std::any_of(passages.begin(), passages.end(),
                                  [](const Passage& passed) { return passed.relayed; });
  if (relays && sends.front().route == Route::relayed) {
    // Try the parts flow by flow, too.
    Plan in_turn{0.0, sends};
    std::stable_sort(in_turn.sends.begin(), in_turn.sends.end(),
                     [](const Send& a, const Send& b) { return a.flow < b.flow; });
    in_turn.end_s = end_in_order_s(problem.passages(in_turn.sends), problem.n_ports());
    if (in_turn.end_s < best.end_s * kBelow) {
      best = std::move(in_turn);
    }
  }
  if (method == Method::greedy || best.end_s <= goal_s || relays) {
    return best;
  }
  return searched(problem, sends, passages, any_sender, std::move(best), steps);
}

// The flow of which another flow is a part, and where the part starts.
struct Origin {
  std::size_t flow;
  std::int64_t start;
};

// The flows of another problem, and the part of our flows that each of them is.
struct Parts {
  std::vector<Flow> flows;
  std::vector<Origin> origins;
};

// Makes a separate flow for each host that a copy must reach.
Parts apart(const Problem& problem) {
  Parts parts;
  for (std::size_t i = 0; i < problem.flows().size(); ++i) {
    const Flow& flow = problem.flows()[i];
    if (flow.senders.size() > 1 || problem.reached(i).size() < 2) {
      parts.flows.push_back(flow);
      parts.origins.push_back({i, 0});
      continue;
    }
    for (const Host host : problem.reached(i)) {
      parts.flows.push_back({flow.n_bytes, flow.itemsize, flow.senders, {host}, flow.chained});
      parts.origins.push_back({i, 0});
    }
  }
  return parts;
}

// Cuts flows in parts of about the same size, about `kParts` together; the parts of all flows
// alternate.
Parts in_parts(const Problem& problem) {
  std::int64_t n_bytes = 0;
  for (const Flow& flow : problem.flows()) {
    n_bytes += flow.n_bytes;
  }
  const std::int64_t part_bytes = std::max(problem.chunk_bytes(), n_bytes / kParts + 1);
  struct Part {
    double middle;  // the middle of the part, as a fraction of its flow
    Origin origin;
    std::int64_t n_bytes;
  };
  std::vector<Part> found;
  for (std::size_t i = 0; i < problem.flows().size(); ++i) {
    const Flow& flow = problem.flows()[i];
    const std::int64_t items = (flow.n_bytes + flow.itemsize - 1) / flow.itemsize;
    std::int64_t n = std::max<std::int64_t>(1, flow.n_bytes / part_bytes);
    if (flow.senders.size() > 1 && n > 1) {
      // On a ring, parts begin at each host in turn, so their number is a multiple of the hosts.
      const auto ring = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(problem.reached(i).size()));
      n = (n + ring - 1) / ring * ring;
    }
    n = std::min(n, std::max<std::int64_t>(1, items));
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t start = (items / n * k + std::min(k, items % n)) * flow.itemsize;
      const std::int64_t n_items = items / n + (k < items % n ? 1 : 0);
      found.push_back({(static_cast<double>(k) + 0.5) / static_cast<double>(n),
                       {i, start},
                       std::min(n_items * flow.itemsize, flow.n_bytes - start)});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Part& a, const Part& b) { return a.middle < b.middle; });
  Parts parts;
  for (const Part& part : found) {
    parts.flows.push_back(problem.flows()[part.origin.flow]);
    parts.flows.back().n_bytes = part.n_bytes;
    parts.origins.push_back(part.origin);
  }
  return parts;
}

// The best plan so far, over several ways to choose senders.
class Best {
 public:
  Best(Method method, std::uint64_t seed, std::int64_t steps)
      : method_(method), seed_(seed), steps_(steps) {}

  // Whether a plan that ends at `earliest_s` at best would be worth more sends.
  bool may_gain(double earliest_s, double worth = kWorth) const {
    return earliest_s < end_s_ * worth;
  }

  // Orders the sends of a problem; no order can end before `earliest_s`.
  void order(const Problem& problem, const std::vector<Send>& sends, double earliest_s,
             bool any_sender, const std::vector<Origin>& origins, double worth = kWorth) {
    if (!may_gain(earliest_s, worth)) {
      return;
    }
    Plan found =
        ordered(problem, sends, method_, earliest_s / kBelow, any_sender, seed_, steps_);
    if (found.end_s < end_s_ * worth) {
      end_s_ = found.end_s;
      sends_ = std::move(found.sends);
      for (Send& send : sends_) {
        const Origin& origin = origins[send.flow];
        send.flow = origin.flow;
        send.start += origin.start;
        send.stop += origin.start;
      }
    }
  }

  // Orders sends whose hosts are fixed.
  void order_chosen(const Problem& problem, const std::vector<Send>& sends,
                    const std::vector<Origin>& origins, double worth = kWorth) {
    const double earliest_s = floor_s(problem.passages(sends), problem.n_ports());
    order(problem, sends, earliest_s, false, origins, worth);
  }

  // Tries whole flows and, if `cut`, flows that are cut among hosts.
  void try_senders(const Problem& problem, bool cut, const std::vector<Origin>& origins) {
    const double bound_s = lower_bound_s(problem);
    if (may_gain(bound_s)) {
      order(problem, balanced(problem), bound_s, true, origins);
    }
    if (cut && may_gain(bound_s)) {
      order_chosen(problem, shared(problem), origins);
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
  std::vector<Origin> itself;
  for (std::size_t i = 0; i < problem.flows().size(); ++i) {
    itself.push_back({i, 0});
  }
  Best best(method, seed, steps);
  best.try_senders(problem, cut, itself);
  const double bound_s = lower_bound_s(problem);
  if (problem.strategy() != Strategy::broadcast || !best.may_gain(bound_s)) {
    return std::move(best).sends();
  }
  const std::vector<Send> sends = along_trees(problem, balanced(problem));
  if (std::any_of(sends.begin(), sends.end(),
                  [](const Send& send) { return send.route == Route::tree; })) {
    best.order_chosen(problem, sends, itself);
  }
  Parts parts = apart(problem);
  if (parts.flows.size() > itself.size()) {
    best.try_senders(problem.of(std::move(parts.flows)), cut, parts.origins);
  }
  if (cut && itself.size() <= kParts && best.may_gain(bound_s, kManyWorth)) {
    parts = in_parts(problem);
    const Problem other = problem.of(std::move(parts.flows));
    std::vector<Send> relayed = balanced(other);
    for (Send& send : relayed) {
      send.route = Route::relayed;
    }
    best.order_chosen(other, relayed, parts.origins, kManyWorth);
  }
  return std::move(best).sends();
}

}  // namespace crossmesh
