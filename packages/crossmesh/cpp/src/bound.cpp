#include "crossmesh/bound.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "crossmesh/share.hpp"

namespace crossmesh {

double lower_bound_s(const Problem& problem) {
  const std::vector<double>& rates = problem.network().rates;
  std::vector<std::int64_t> received(rates.size(), 0);
  std::map<Hosts, std::int64_t> leaving;
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
