#include "crossmesh/senders.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "crossmesh/share.hpp"

namespace crossmesh {
namespace {

using Hosts = std::vector<Host>;
using Flags = std::vector<char>;

// Where a host's part of a flow stops.
struct Cut {
  std::int64_t stop;
  Host host;
};
using Cuts = std::vector<std::vector<Cut>>;

std::size_t at(Host host) { return static_cast<std::size_t>(host); }

bool contains(const Hosts& hosts, Host host) {
  return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
}

Hosts sorted_set(Hosts hosts) {
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

void check_flows(const std::vector<Flow>& flows, std::size_t n_hosts) {
  constexpr std::int64_t most = (std::int64_t{1} << 62) - 1;
  std::int64_t room = most;
  const auto check_host = [&](Host host) {
    if (host < 0 || at(host) >= n_hosts) {
      throw std::invalid_argument("every host needs a rate; got none for host " +
                                  std::to_string(host));
    }
  };
  for (const Flow& flow : flows) {
    if (flow.n_bytes < 0) {
      throw std::invalid_argument("bytes must not be negative; got " +
                                  std::to_string(flow.n_bytes));
    }
    if (flow.itemsize < 1 || flow.itemsize > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("an item has 1 to 2**31 - 1 bytes; got " +
                                  std::to_string(flow.itemsize));
    }
    if (flow.senders.empty()) {
      throw std::invalid_argument("a flow has at least one term; got none");
    }
    for (const Hosts& term : flow.senders) {
      if (term.empty()) {
        throw std::invalid_argument("a term needs at least one sender host; got none");
      }
      std::for_each(term.begin(), term.end(), check_host);
    }
    std::for_each(flow.receivers.begin(), flow.receivers.end(), check_host);
    // Twice the times that the bytes can cross the network, and the bytes to round up to an item.
    const auto times = 2 * static_cast<std::int64_t>(flow.senders.size() + flow.receivers.size());
    if (flow.n_bytes > (room - flow.itemsize) / times) {
      throw std::invalid_argument("all bytes to all receivers must be fewer than 2**61");
    }
    room -= flow.n_bytes * times;
  }
}

// Those that add, then the receivers, in a circle from the last that adds on. Who adds and receives
// adds last, where the sum ends up.
Hosts path_of(const Hosts& senders, const Hosts& reached) {
  Hosts path;
  for (const Host host : senders) {
    if (!contains(path, host)) {
      path.push_back(host);
    }
  }
  if (path.size() > 1) {
    std::stable_partition(path.begin(), path.end(), [&](Host host) {
      return !std::binary_search(reached.begin(), reached.end(), host);
    });
  }
  const Host last_adder = path.back();
  const auto above = std::upper_bound(reached.begin(), reached.end(), last_adder);
  path.insert(path.end(), above, reached.end());
  std::copy_if(reached.begin(), above, std::back_inserter(path),
               [&](Host host) { return host != last_adder; });
  return path;
}

// Lets a receiver be the last.
void put_last(Hosts& path, std::size_t n_adders, Host tail) {
  const auto receivers = path.begin() + static_cast<std::ptrdiff_t>(n_adders);
  const auto found = std::find(receivers, path.end(), tail);
  if (found != path.end()) {
    std::rotate(found, found + 1, path.end());
  }
}

// Hosts that send something of their own, so that it matters what they pass on.
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

template <typename Predicate>
Hosts filtered(const Hosts& hosts, Predicate keep) {
  Hosts result;
  std::copy_if(hosts.begin(), hosts.end(), std::back_inserter(result), keep);
  return result;
}

// One flow in one piece, by the loads so far, which it adds to.
Send whole(const Problem& problem, std::size_t index, const Flags& busy,
           std::vector<double>& load_s) {
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
    return std::make_pair(load_s[at(host)] + duration_s, host);
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
  const std::size_t n_adders = sorted_set(senders).size();
  Hosts path = path_of(senders, reached);
  std::optional<Host> tail;
  for (std::size_t i = n_adders; i < path.size(); ++i) {
    if (busy[at(path[i])] && (!tail || load_s[at(path[i])] >= load_s[at(*tail)])) {
      tail = path[i];
    }
  }
  if (tail) {
    put_last(path, n_adders, *tail);
  }
  Send send{index, 0, flow.n_bytes, std::move(senders), std::move(path)};
  for (const Hop& hop : problem.passage(send).hops) {
    load_s[at(hop.from)] += hop.duration_s;
  }
  return send;
}

// How often a byte leaves its sender.
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

// Lays flows on a line, and cuts it by the hosts' shares, at whole items.
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

// The sends of one flow: cut where its sender changes, and where the end of its path does.
void add_pieces(const Problem& problem, std::size_t index, const std::vector<Cut>& cuts,
                const std::vector<Cut>& tails, std::vector<Send>& sends) {
  auto tail_cut = tails.begin();
  std::int64_t start = 0;
  for (const Cut& cut : cuts) {
    while (start < cut.stop) {
      std::int64_t stop = cut.stop;
      Hosts path = path_of({cut.host}, problem.reached(index));
      if (!tails.empty()) {
        stop = std::min(stop, tail_cut->stop);
        put_last(path, 1, tail_cut->host);
        tail_cut += stop == tail_cut->stop ? 1 : 0;
      }
      sends.push_back({index, start, stop, {cut.host}, std::move(path)});
      start = stop;
    }
  }
}

}  // namespace

Problem::Problem(std::vector<Flow> flows, Network network, Strategy strategy,
                 std::int64_t n_chunks)
    : flows_(std::move(flows)),
      network_(std::move(network)),
      strategy_(strategy),
      n_chunks_(n_chunks) {
  check(network_);
  check_flows(flows_, network_.rates.size());
  if (n_chunks < 1) {
    throw std::invalid_argument("there must be at least one chunk; got " +
                                std::to_string(n_chunks));
  }
  for (Flow& flow : flows_) {
    Hosts hosts = sorted_set(flow.receivers);
    if (flow.senders.size() == 1) {
      const std::set<Host> holders(flow.senders[0].begin(), flow.senders[0].end());
      const auto holds = [&](Host host) { return holders.count(host) > 0; };
      Hosts served_at_home = filtered(hosts, holds);
      hosts = filtered(hosts, [&](Host host) { return !holds(host); });
      if (hosts.empty() && !served_at_home.empty()) {
        flow.senders[0] = std::move(served_at_home);
      }
    }
    reached_.push_back(std::move(hosts));
  }
}

bool Problem::reaches(std::size_t flow, Host host) const {
  return std::binary_search(reached_[flow].begin(), reached_[flow].end(), host);
}

Passage Problem::passage(const Send& send) const {
  const Flow& flow = flows_[send.flow];
  std::map<Host, std::size_t> terms;
  for (const Host host : send.senders) {
    ++terms[host];
  }
  Job job{send.stop - send.start, {}, send.senders.size(), flow.chained, strategy_,
          n_chunks_};
  for (std::size_t i = 0; i < terms.size(); ++i) {
    job.path.insert(job.path.end(), terms[send.path[i]], send.path[i]);
  }
  std::map<Host, std::size_t> devices;
  if (strategy_ == Strategy::send_recv || strategy_ == Strategy::global_allgather) {
    for (const Host host : flow.receivers) {
      ++devices[host];
    }
  }
  for (std::size_t i = terms.size(); i < send.path.size(); ++i) {
    const auto found = devices.find(send.path[i]);
    job.path.insert(job.path.end(), found == devices.end() ? 1 : found->second, send.path[i]);
  }
  return crossmesh::passage(job, network_);
}

std::vector<Passage> Problem::passages(const std::vector<Send>& sends) const {
  std::vector<Passage> result;
  for (const Send& send : sends) {
    result.push_back(passage(send));
  }
  return result;
}

std::vector<Send> naive(const Problem& problem) {
  std::vector<Send> sends;
  for (std::size_t index = 0; index < problem.flows().size(); ++index) {
    const Flow& flow = problem.flows()[index];
    Hosts senders;
    for (const Hosts& term : flow.senders) {
      senders.push_back(*std::min_element(term.begin(), term.end()));
    }
    Hosts path = path_of(senders, problem.reached(index));
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
  std::vector<double> load_s(problem.network().rates.size(), 0.0);
  std::vector<Send> sends;
  for (const std::size_t index : largest_first) {
    sends.push_back(whole(problem, index, busy, load_s));
  }
  return sends;
}

std::vector<Send> shared(const Problem& problem) {
  const auto& flows = problem.flows();
  const Flags busy = contested(problem);
  std::vector<double> load_s(problem.network().rates.size(), 0.0);
  std::vector<std::int64_t> base(problem.network().rates.size(), 0);
  std::vector<Send> sends;
  std::map<Hosts, std::vector<std::size_t>> sources;  // flows by their senders
  std::map<Hosts, std::vector<std::size_t>> relays;   // flows by their receivers
  for (std::size_t index = 0; index < flows.size(); ++index) {
    const Flow& flow = flows[index];
    const Hosts& reached = problem.reached(index);
    if (flow.senders.size() > 1 || reached.empty() || flow.n_bytes == 0) {
      Send send = whole(problem, index, busy, load_s);
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
      if (relay) {  // each host passes on all but what it is the last to get
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

double lower_bound_s(const std::vector<Flow>& flows, const std::vector<double>& rates) {
  check(Network{rates, 0.0});
  check_flows(flows, rates.size());
  std::vector<std::int64_t> received(rates.size(), 0);
  std::map<Hosts, std::int64_t> leaving;
  for (const Flow& flow : flows) {
    std::vector<Hosts> terms;
    for (const Hosts& term : flow.senders) {
      terms.push_back(sorted_set(term));
    }
    const Hosts lacking = filtered(sorted_set(flow.receivers), [&](Host host) {
      return !std::all_of(terms.begin(), terms.end(), [&](const Hosts& term) {
        return std::binary_search(term.begin(), term.end(), host);
      });
    });
    if (lacking.empty()) {
      continue;
    }
    for (const Host host : lacking) {
      received[at(host)] += flow.n_bytes;
    }
    std::set<Host> counted;
    for (const Hosts& term : terms) {
      // Terms on disjoint hosts leave them apart, unless every receiver has its own.
      const bool disjoint = std::none_of(term.begin(), term.end(),
                                         [&](Host host) { return counted.count(host) > 0; });
      if (disjoint && !std::includes(term.begin(), term.end(), lacking.begin(), lacking.end())) {
        counted.insert(term.begin(), term.end());
        leaving[term] += flow.n_bytes;
      }
    }
    if (terms.size() == 1 && lacking.size() > 1) {
      Hosts everyone = terms[0];
      everyone.insert(everyone.end(), lacking.begin(), lacking.end());
      leaving[sorted_set(everyone)] +=
          static_cast<std::int64_t>(lacking.size() - 1) * flow.n_bytes;
    }
  }
  double bound_s = 0.0;
  for (std::size_t host = 0; host < rates.size(); ++host) {
    bound_s = std::max(bound_s, static_cast<double>(received[host]) / rates[host]);
  }
  if (!leaving.empty()) {
    std::vector<Demand> demands;
    for (const auto& [hosts, n_bytes] : leaving) {
      demands.push_back({n_bytes, hosts, n_bytes});
    }
    const std::vector<std::int64_t> base(rates.size(), 0);
    bound_s = std::max(bound_s, level(demands, base, rates).first);
  }
  return bound_s;
}

}  // namespace crossmesh
