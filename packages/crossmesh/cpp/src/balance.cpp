#include "crossmesh/balance.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>

namespace crossmesh {
namespace {

void check(const std::vector<OldFlow>& flows, const Rates& rates) {
  for (const auto& [host, rate] : rates) {
    if (!std::isfinite(rate) || rate <= 0) {
      throw std::invalid_argument("a rate must be a positive number of bytes per second; got " +
                                  std::to_string(rate) + " for host " + std::to_string(host));
    }
  }
  for (const OldFlow& flow : flows) {
    if (flow.n_bytes < 0) {
      throw std::invalid_argument("bytes must not be negative; got " +
                                  std::to_string(flow.n_bytes));
    }
    if (flow.sender_hosts.empty()) {
      throw std::invalid_argument("a flow needs at least one sender host; got none");
    }
    for (const auto* hosts : {&flow.sender_hosts, &flow.receiver_hosts}) {
      for (const std::int64_t host : *hosts) {
        if (rates.count(host) == 0) {
          throw std::invalid_argument("every host needs a rate; got none for host " +
                                      std::to_string(host));
        }
      }
    }
  }
}

double duration_s(const OldFlow& flow, std::int64_t sender_host, const Rates& rates) {
  double slowest = rates.at(sender_host);
  for (const std::int64_t host : flow.receiver_hosts) {
    slowest = std::min(slowest, rates.at(host));
  }
  return static_cast<double>(flow.n_bytes) / slowest;
}

}  // namespace

std::vector<std::int64_t> balance(const std::vector<OldFlow>& flows, const Rates& rates) {
  check(flows, rates);
  std::vector<std::size_t> largest_first(flows.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](std::size_t a, std::size_t b) {
    return flows[a].n_bytes > flows[b].n_bytes;
  });

  std::map<std::int64_t, double> load_s;
  std::vector<std::int64_t> chosen(flows.size());
  for (const std::size_t index : largest_first) {
    const OldFlow& flow = flows[index];
    const auto finish_s = [&](std::int64_t host) {
      return load_s[host] + duration_s(flow, host, rates);
    };
    const std::int64_t host = *std::min_element(
        flow.sender_hosts.begin(), flow.sender_hosts.end(), [&](std::int64_t a, std::int64_t b) {
          const double finish_a = finish_s(a);
          const double finish_b = finish_s(b);
          return finish_a != finish_b ? finish_a < finish_b : a < b;
        });
    load_s[host] = finish_s(host);
    chosen[index] = host;
  }
  return chosen;
}

}  // namespace crossmesh
