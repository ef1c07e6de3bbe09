#include "crossmesh/bound.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "crossmesh/share.hpp"

namespace crossmesh {

namespace {

bool disjoint(const Hosts& hosts, const std::set<Host>& others) {
  return std::none_of(hosts.begin(), hosts.end(),
                      [&](Host host) { return others.count(host) > 0; });
}

}  // namespace

double lower_bound_s(const Problem& problem) {
  const std::vector<double>& rates = problem.network().rates;
  std::vector<std::int64_t> received(rates.size(), 0);
  std::map<Hosts, std::int64_t> leaving;
  std::map<Hosts, std::int64_t> arriving;  // partial results, at hosts that may not need the sum
  for (const Flow& flow : problem.flows()) {
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
    std::set<Host> sending;  // hosts of disjoint terms, which leave these hosts separately
    std::set<Host> holding;  // the same, including terms that every receiver holds itself
    std::int64_t n_leaving = 0;
    std::int64_t n_terms = 0;
    for (const Hosts& term : terms) {
      if (disjoint(term, holding)) {
        holding.insert(term.begin(), term.end());
        ++n_terms;
      }
      if (disjoint(term, sending) &&
          !std::includes(term.begin(), term.end(), lacking.begin(), lacking.end())) {
        sending.insert(term.begin(), term.end());
        leaving[term] += flow.n_bytes;
        ++n_leaving;
      }
    }
    // The number of messages: one for each term that the first receiver lacks, until it has the
    // sum, then one for each other receiver.
    const bool one_adds = !disjoint(lacking, holding);
    const auto n_lacking = static_cast<std::int64_t>(lacking.size());
    const std::int64_t n_messages = n_terms - (one_adds ? 1 : 0) + n_lacking - 1;
    Hosts everyone = lacking;
    for (const Hosts& term : terms) {
      everyone.insert(everyone.end(), term.begin(), term.end());
    }
    everyone = sorted_set(std::move(everyone));
    if (n_messages > n_leaving) {
      leaving[everyone] += (n_messages - n_leaving) * flow.n_bytes;
    }
    if (n_messages > n_lacking) {
      arriving[everyone] += (n_messages - n_lacking) * flow.n_bytes;
    }
  }
  double bound_s = 0.0;
  for (std::size_t host = 0; host < rates.size(); ++host) {
    bound_s = std::max(bound_s, static_cast<double>(received[host]) / rates[host]);
  }
  const auto level_s = [&](const std::map<Hosts, std::int64_t>& by_hosts,
                           const std::vector<std::int64_t>& base) {
    std::vector<Demand> demands;
    for (const auto& [hosts, n_bytes] : by_hosts) {
      demands.push_back({n_bytes, hosts, n_bytes});
    }
    return demands.empty() ? 0.0 : level(demands, base, rates).first;
  };
  bound_s = std::max(bound_s, level_s(leaving, std::vector<std::int64_t>(rates.size(), 0)));
  return std::max(bound_s, level_s(arriving, received));
}

}  // namespace crossmesh
