#include "crossmesh/senders.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "crossmesh/share.hpp"

namespace crossmesh {
namespace {

using Flags = std::vector<char>;

// The end of a host's part of a flow.
struct Cut {
  std::int64_t stop;
  Host host;
};
using Cuts = std::vector<std::vector<Cut>>;

bool contains(const Hosts& hosts, Host host) {
  return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
}

// The hosts in a circle, from the one after `start` on.
Hosts circle(const Hosts& sorted, Host start) {
  Hosts result = sorted;
  std::rotate(result.begin(), std::upper_bound(result.begin(), result.end(), start), result.end());
  return result;
}

// The hosts without one of them.
Hosts without(const Hosts& hosts, Host host) {
  return filtered(hosts, [&](Host other) { return other != host; });
}

// The sender, then the receivers in a circle from it on.
Hosts path_of(Host sender, const Hosts& reached) {
  Hosts path = without(circle(reached, sender), sender);
  path.insert(path.begin(), sender);
  return path;
}

// The host with the largest load; of several, the first.
Host busiest(const Hosts& hosts, const std::vector<double>& load_s) {
  return *std::max_element(hosts.begin(), hosts.end(),
                           [&](Host a, Host b) { return load_s[at(a)] < load_s[at(b)]; });
}

// The adding hosts, then the receiving ones. A host that does both, and is not at an end of the
// path, passes the bytes twice. So the last adder is one that receives, and so is the first, which
// gets the bytes only once then. If there are two such hosts, the other one begins and ends the
// path. If there are more, all are on a ring, as in a ring all-reduce, whose gaps are filled by
// parts that begin at another host. The busiest hosts are put where they have less to do.
Hosts sum_path(const Hosts& adders, const Hosts& reached, const Flags& busy,
               const std::vector<double>& sent_s, const std::vector<double>& received_s) {
  const Hosts both = filtered(adders, [&](Host host) {
    return std::binary_search(reached.begin(), reached.end(), host);
  });
  Hosts path;
  if (both.empty()) {
    const Host first = busiest(adders, received_s);
    path = circle(without(adders, first), first);
    path.insert(path.begin(), first);
  } else {
    const Host root = busiest(both, sent_s);
    path = circle(without(adders, root), root);
    const auto is_both = [&](Host host) { return contains(both, host); };
    auto first = std::find_if(path.begin(), path.end(), is_both);
    if (first == path.end() && !path.empty()) {
      first = std::find(path.begin(), path.end(), busiest(path, received_s));
    }
    std::rotate(path.begin(), first, path.end());
    path.push_back(root);
  }
  const Host root = path.back();
  Hosts followers = without(circle(reached, root), root);
  if (both.size() == 2) {
    followers = without(followers, path.front());
    followers.push_back(path.front());
  }
  // Hosts that send no bytes that they hold have time to pass others on, so they come first.
  std::stable_partition(followers.begin(), followers.end(), [&](Host host) {
    return !busy[at(host)] && !std::binary_search(adders.begin(), adders.end(), host);
  });
  path.insert(path.end(), followers.begin(), followers.end());
  return path;
}

// Makes a receiver the last on the path.
void put_last(Hosts& path, Host tail) {
  const auto found = std::find(path.begin() + 1, path.end(), tail);
  if (found != path.end()) {
    std::rotate(found, found + 1, path.end());
  }
}

// The hosts that send bytes that they hold, so that passing on other bytes costs them time.
Flags contested(const Problem& problem) {
  Flags result(problem.network().rates.size(), 0);
  for (std::size_t index = 0; index < problem.flows().size(); ++index) {
    if (!problem.reached(index).empty()) {
      for (const Hosts& term : problem.flows()[index].senders) {
        for (const Host host : term) {
          result[at(host)] = 1;
        }
      }
    }
  }
  return result;
}

// How long each host sends and receives the flows that have been assigned so far.
struct Loads {
  explicit Loads(std::size_t n_hosts) : sent_s(n_hosts, 0.0), received_s(n_hosts, 0.0) {}
  std::vector<double> sent_s;
  std::vector<double> received_s;
};

// The send of one whole flow, chosen by the loads so far; adds its own to these.
Send whole(const Problem& problem, std::size_t index, const Flags& busy, Loads& loads) {
  const Flow& flow = problem.flows()[index];
  const auto& rates = problem.network().rates;
  const Hosts& reached = problem.reached(index);
  double slowest = std::numeric_limits<double>::infinity();
  for (const Host host : reached) {
    slowest = std::min(slowest, rates[at(host)]);
  }
  const auto done = [&](Host host) {
    const double duration_s =
        static_cast<double>(flow.n_bytes) / std::min(rates[at(host)], slowest);
    return std::make_pair(loads.sent_s[at(host)] + duration_s, host);
  };

  Hosts senders;
  for (const Hosts& term : flow.senders) {
    Hosts among = filtered(term, [&](Host host) { return contains(senders, host); });
    if (among.empty()) {
      among = filtered(term, [&](Host host) { return problem.reaches(index, host); });
    }
    if (among.empty()) {
      among = term;
    }
    senders.push_back(*std::min_element(among.begin(), among.end(),
                                        [&](Host a, Host b) { return done(a) < done(b); }));
  }
  Hosts path;
  if (flow.senders.size() > 1) {
    path = sum_path(sorted_set(senders), reached, busy, loads.sent_s, loads.received_s);
  } else {
    path = path_of(senders[0], reached);
    std::optional<Host> tail;
    for (std::size_t i = 1; i < path.size(); ++i) {
      if (busy[at(path[i])] &&
          (!tail || loads.sent_s[at(path[i])] >= loads.sent_s[at(*tail)])) {
        tail = path[i];
      }
    }
    if (tail) {
      put_last(path, *tail);
    }
  }
  Send send{index, 0, flow.n_bytes, std::move(senders), std::move(path)};
  for (const Hop& hop : problem.passage(send).hops) {
    loads.sent_s[at(hop.from)] += hop.duration_s;
    loads.received_s[at(hop.to)] += hop.duration_s;
  }
  return send;
}

// How many times each byte of a flow leaves its sender.
std::int64_t weight(const Problem& problem, std::size_t index) {
  switch (problem.strategy()) {
    case Strategy::send_recv: {
      const Hosts& receivers = problem.flows()[index].receivers;
      return std::count_if(receivers.begin(), receivers.end(),
                           [&](Host host) { return problem.reaches(index, host); });
    }
    case Strategy::local_allgather:
      return static_cast<std::int64_t>(problem.reached(index).size());
    default:
      return 1;
  }
}

// Lays flows on a line, and cuts the line by the hosts' shares, between items.
void deal(const Problem& problem,
          const std::vector<std::pair<std::size_t, std::int64_t>>& weighted, const Hosts& hosts,
          const std::vector<std::int64_t>& share, Cuts& cuts) {
  std::vector<std::int64_t> ends(share.size());
  std::partial_sum(share.begin(), share.end(), ends.begin());
  std::size_t k = 0;
  std::int64_t start = 0;
  for (const auto& [index, times] : weighted) {
    const Flow& flow = problem.flows()[index];
    std::int64_t done = 0;
    while (done < flow.n_bytes) {
      while (k + 1 < ends.size() && ends[k] <= start + done * times) {
        ++k;
      }
      std::int64_t stop = flow.n_bytes;
      if (k + 1 < ends.size()) {
        const std::int64_t items =
            std::max((ends[k] - start) / times, done + 1) + flow.itemsize - 1;
        stop = std::min(stop, items / flow.itemsize * flow.itemsize);
      }
      cuts[index].push_back({stop, hosts[k]});
      done = stop;
    }
    start += flow.n_bytes * times;
  }
}

// Adds the sends of one flow, which is cut where its sender changes and where the last host of its
// path changes.
void add_pieces(const Problem& problem, std::size_t index, const std::vector<Cut>& cuts,
                const std::vector<Cut>& tails, std::vector<Send>& sends) {
  auto tail_cut = tails.begin();
  std::int64_t start = 0;
  for (const Cut& cut : cuts) {
    while (start < cut.stop) {
      std::int64_t stop = cut.stop;
      Hosts path = path_of(cut.host, problem.reached(index));
      if (!tails.empty()) {
        stop = std::min(stop, tail_cut->stop);
        put_last(path, tail_cut->host);
        tail_cut += stop == tail_cut->stop ? 1 : 0;
      }
      sends.push_back({index, start, stop, {cut.host}, std::move(path)});
      start = stop;
    }
  }
}

}  // namespace

std::vector<Send> naive(const Problem& problem) {
  const std::vector<double> idle(problem.network().rates.size(), 0.0);
  const Flags nobody(problem.network().rates.size(), 0);
  std::vector<Send> sends;
  for (std::size_t index = 0; index < problem.flows().size(); ++index) {
    const Flow& flow = problem.flows()[index];
    Hosts senders;
    for (const Hosts& term : flow.senders) {
      senders.push_back(*std::min_element(term.begin(), term.end()));
    }
    const Hosts& reached = problem.reached(index);
    Hosts path = senders.size() > 1
                     ? sum_path(sorted_set(senders), reached, nobody, idle, idle)
                     : path_of(senders[0], reached);
    sends.push_back({index, 0, flow.n_bytes, std::move(senders), std::move(path)});
  }
  return sends;
}

std::vector<Send> balanced(const Problem& problem) {
  const auto& flows = problem.flows();
  std::vector<std::size_t> largest_first(flows.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](std::size_t a, std::size_t b) {
    return flows[a].n_bytes > flows[b].n_bytes;
  });
  const Flags busy = contested(problem);
  Loads loads(problem.network().rates.size());
  std::vector<Send> sends;
  for (const std::size_t index : largest_first) {
    sends.push_back(whole(problem, index, busy, loads));
  }
  return sends;
}

std::vector<Send> along_trees(const Problem& problem, std::vector<Send> sends) {
  for (Send& send : sends) {
    const Flow& flow = problem.flows()[send.flow];
    if (send.path.size() > 3 && (flow.chained || flow.senders.size() == 1)) {
      Send other = send;
      other.route = Route::tree;
      if (problem.passage(other).total_s < problem.passage(send).total_s * kWorth) {
        send = std::move(other);
      }
    }
  }
  return sends;
}

std::vector<Send> shared(const Problem& problem) {
  const auto& flows = problem.flows();
  const Flags busy = contested(problem);
  Loads loads(problem.network().rates.size());
  std::vector<std::int64_t> base(problem.network().rates.size(), 0);
  std::vector<Send> sends;
  std::map<Hosts, std::vector<std::size_t>> sources;  // flows by their senders
  std::map<Hosts, std::vector<std::size_t>> relays;   // flows by their receivers
  for (std::size_t index = 0; index < flows.size(); ++index) {
    const Flow& flow = flows[index];
    const Hosts& reached = problem.reached(index);
    if (flow.senders.size() > 1 || reached.empty() || flow.n_bytes == 0) {
      Send send = whole(problem, index, busy, loads);
      for (const Hop& hop : problem.passage(send).hops) {
        base[at(hop.from)] += static_cast<std::int64_t>(hop.n_bytes);
      }
      sends.push_back(std::move(send));
      continue;
    }
    sources[sorted_set(flow.senders[0])].push_back(index);
    if (problem.strategy() == Strategy::broadcast && reached.size() > 1 &&
        std::any_of(reached.begin(), reached.end(), [&](Host host) { return busy[at(host)]; })) {
      relays[reached].push_back(index);
    }
  }

  std::vector<Demand> demands;
  std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> weighted;
  for (auto& [hosts, group] : sources) {
    std::stable_sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      return problem.reached(a) < problem.reached(b);
    });
    std::int64_t n_bytes = 0;
    auto& line = weighted.emplace_back();
    for (const std::size_t index : group) {
      line.emplace_back(index, weight(problem, index));
      n_bytes += flows[index].n_bytes * line.back().second;
    }
    demands.push_back({n_bytes, hosts, n_bytes});
  }
  for (const auto& [hosts, group] : relays) {
    std::int64_t n_bytes = 0;
    auto& line = weighted.emplace_back();
    for (const std::size_t index : group) {
      line.emplace_back(index, 1);
      n_bytes += flows[index].n_bytes;
    }
    demands.push_back({static_cast<std::int64_t>(hosts.size() - 1) * n_bytes, hosts, n_bytes});
  }

  Cuts cuts(flows.size());
  Cuts tails(flows.size());
  if (!demands.empty()) {
    auto shares = level(demands, base, problem.network().rates).second;
    for (std::size_t i = 0; i < demands.size(); ++i) {
      const bool relay = i >= sources.size();
      if (relay) {  // a host passes on all bytes except those of which it is the last receiver
        for (std::int64_t& share : shares[i]) {
          share = demands[i].most - share;
        }
      }
      deal(problem, weighted[i], demands[i].hosts, shares[i], relay ? tails : cuts);
    }
  }
  for (std::size_t index = 0; index < flows.size(); ++index) {
    add_pieces(problem, index, cuts[index], tails[index], sends);
  }
  return sends;
}

}  // namespace crossmesh
