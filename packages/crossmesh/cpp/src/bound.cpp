#include "crossmesh/bound.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "crossmesh/share.hpp"

namespace crossmesh {

namespace {

// The search for the fewest hosts with all terms ends after so many steps [chosen: 10 us].
constexpr int kCoverSteps = 1000;

bool disjoint(const Hosts& hosts, const std::set<Host>& others) {
  return std::none_of(hosts.begin(), hosts.end(),
                      [&](Host host) { return others.count(host) > 0; });
}

// Whether `most` hosts, together with those that are chosen, have a host of each term; true if this
// takes more than `steps` to find out.
bool can_cover(const std::vector<Hosts>& terms, std::size_t most, std::set<Host>& chosen,
               int& steps) {
  const auto open = std::find_if(terms.begin(), terms.end(),
                                 [&](const Hosts& term) { return disjoint(term, chosen); });
  if (open == terms.end() || --steps < 0) {
    return true;
  }
  if (most == 0) {
    return false;
  }
  for (const Host host : *open) {
    chosen.insert(host);
    const bool covers = can_cover(terms, most - 1, chosen, steps);
    chosen.erase(host);
    if (covers) {
      return true;
    }
  }
  return false;
}

// A lower bound, mostly exact, of the number of hosts that have a term each: a minimum hitting set.
std::int64_t fewest_adders(const std::vector<Hosts>& terms) {
  int steps = kCoverSteps;
  std::set<Host> chosen;
  std::size_t most = 1;
  while (!can_cover(terms, most, chosen, steps)) {
    ++most;
  }
  return static_cast<std::int64_t>(most);
}

}  // namespace

double lower_bound_s(const Problem& problem) {
  const std::vector<double>& rates = problem.network().rates;
  std::vector<std::int64_t> received(rates.size(), 0);
  std::map<Hosts, std::int64_t> leaving;
  std::map<std::vector<Hosts>, std::int64_t> adders_of;  // by terms
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
    std::int64_t n_messages = n_terms - (one_adds ? 1 : 0) + n_lacking - 1;
    Hosts holders;
    for (const Hosts& term : terms) {
      holders.insert(holders.end(), term.begin(), term.end());
    }
    holders = sorted_set(std::move(holders));
    Hosts everyone = lacking;
    everyone.insert(everyone.end(), holders.begin(), holders.end());
    everyone = sorted_set(std::move(everyone));
    // Each byte has at least so many adders, and all of them send it, but for one that also needs
    // the sum. Then it is sent to the other receivers.
    std::int64_t n_added = n_leaving;
    if (terms.size() > 1) {
      const bool one_keeps = std::any_of(lacking.begin(), lacking.end(), [&](Host host) {
        return std::binary_search(holders.begin(), holders.end(), host);
      });
      auto known = adders_of.find(terms);
      if (known == adders_of.end()) {
        known = adders_of.emplace(terms, fewest_adders(terms)).first;
      }
      n_added = std::max(n_added, known->second - (one_keeps ? 1 : 0));
      n_messages = std::max(n_messages, known->second - (one_keeps ? 1 : 0) + n_lacking - 1);
      if (n_added > n_leaving) {
        leaving[holders] += (n_added - n_leaving) * flow.n_bytes;
      }
    }
    if (n_messages > n_added) {
      leaving[everyone] += (n_messages - n_added) * flow.n_bytes;
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
