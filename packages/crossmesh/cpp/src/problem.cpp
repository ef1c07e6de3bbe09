#include "crossmesh/problem.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace crossmesh {
namespace {

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
    // Twice the number of times that the bytes can cross the network; an item is kept free for
    // rounding up.
    const auto times = 2 * static_cast<std::int64_t>(flow.senders.size() + flow.receivers.size());
    if (flow.n_bytes > (room - flow.itemsize) / times) {
      throw std::invalid_argument("all bytes to all receivers must be fewer than 2**61");
    }
    room -= flow.n_bytes * times;
  }
}

}  // namespace

Problem::Problem(std::vector<Flow> flows, Network network, Strategy strategy,
                 std::int64_t n_chunks, std::int64_t chunk_bytes)
    : flows_(std::move(flows)),
      network_(std::move(network)),
      strategy_(strategy),
      n_chunks_(n_chunks),
      chunk_bytes_(chunk_bytes) {
  check(network_);
  check_flows(flows_, network_.rates.size());
  if (n_chunks < 1) {
    throw std::invalid_argument("there must be at least one chunk; got " +
                                std::to_string(n_chunks));
  }
  if (chunk_bytes < 0) {
    throw std::invalid_argument("a chunk has no less than 0 bytes; got " +
                                std::to_string(chunk_bytes));
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

Problem Problem::of(std::vector<Flow> flows) const {
  return {std::move(flows), network_, strategy_, n_chunks_, chunk_bytes_};
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
  const std::int64_t n_bytes = send.stop - send.start;
  std::int64_t n_chunks = n_chunks_;
  if (send.route != Route::pipelined) {
    n_chunks = 1;
  } else if (chunk_bytes_ > 0) {
    n_chunks = std::max<std::int64_t>(1, std::min(n_chunks, n_bytes / chunk_bytes_));
  }
  Job job{n_bytes, {}, send.senders.size(), flow.chained, strategy_, n_chunks};
  if (send.route == Route::tree) {
    job.path = send.path;
    job.n_adders = terms.size();
    job.tree = binomial_tree(terms.size(), send.path.size() - terms.size());
    return crossmesh::passage(job, network_);
  }
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

}  // namespace crossmesh
