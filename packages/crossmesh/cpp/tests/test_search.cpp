#include "crossmesh/search.hpp"

#include <algorithm>
#include <limits>
#include <random>

#include "check.hpp"
#include "crossmesh/bound.hpp"
#include "crossmesh/depth_first.hpp"
#include "crossmesh/greedy.hpp"
#include "crossmesh/share.hpp"
#include "crossmesh/simulate.hpp"

namespace {

using namespace crossmesh;

const Network kEqual{{1.0, 1.0, 1.0, 1.0}, 0.0};

double end_s(const Problem& problem, const std::vector<Send>& sends) {
  std::vector<double> free_s(problem.n_ports(), 0.0);
  double last_s = 0.0;
  for (const Passage& passed : problem.passages(sends)) {
    const double at_s = start_s(passed, free_s);
    occupy(passed, at_s, free_s);
    last_s = std::max(last_s, at_s + passed.total_s);
  }
  return last_s;
}

void shares_are_least_for_the_busiest() {
  const auto [time_s, shares] = level({{9, {0, 1}, 9}, {3, {1}, 3}}, {0, 0}, {1.0, 1.0});
  CHECK(time_s == 6.0);
  CHECK((shares == std::vector<std::vector<std::int64_t>>{{6, 3}, {3}}));
  CHECK(level({}, {5, 0}, {1.0, 1.0}).first == 5.0);
  const auto huge = std::int64_t{1} << 60;
  CHECK(level({{huge, {0, 1}, huge}}, {0, 0}, {1e100, 1e-100}).first > 0);
}

void broadcast_passes_hosts_in_a_row() {
  const Passage passed = passage({8, {0, 1, 1, 2}, 1, true, Strategy::broadcast, 4}, kEqual);
  CHECK(passed.total_s == 10.0);
  CHECK(passed.hops.size() == 2 && passed.hops[1].start_s == 2.0);
  CHECK(passed.uses.size() == 4 && passed.uses[0].port == 0 && passed.uses[3].port == 5);
}

void all_at_once_shares_a_port() {
  const std::vector<Job> jobs(3, Job{6, {0, 1}, 1, true, Strategy::broadcast, 1});
  const auto together = simulate_together(jobs, kEqual);
  const auto in_order = simulate_in_order(jobs, kEqual);
  CHECK(together[0].end_s == 18.0 && in_order[0].end_s == 6.0 && in_order[2].end_s == 18.0);
}

void nothing_to_send_is_no_time() {
  const Problem problem({}, {{}, 0.0}, Strategy::broadcast, 1);
  CHECK(search(problem, Method::ensemble, true, 0, 100).empty());
  CHECK(lower_bound_s(problem) == 0.0);
  CHECK(greedy({}, {}, 0, 0, 0).indices.empty());
  CHECK(depth_first({}, 0, 1.0, 1)->steps.empty());
  CHECK(simulate_together({}, {{}, 0.0}).empty());
}

void deep_searches_are_refused_and_broad_ones_end() {
  const std::vector<Flow> flows(3000, Flow{1, 1, {{0, 1}}, {2}, true});
  const Problem problem(flows, kEqual, Strategy::broadcast, 1);
  CHECK(end_s(problem, search(problem, Method::ensemble, true, 0, 1000)) == 3000.0);
  CHECK(search(problem, Method::dfs, false, 0, 1000).size() == 3000);
}

void refuses_what_has_no_meaning() {
  const auto problem = [](Flow flow, Network network = kEqual, std::int64_t n_chunks = 1) {
    return Problem({std::move(flow)}, std::move(network), Strategy::broadcast, n_chunks);
  };
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_REFUSES(problem({-1, 1, {{0}}, {1}, true}), "must not be negative; got -1");
  CHECK_REFUSES(problem({1, 0, {{0}}, {1}, true}), "1 to 2**31 - 1 bytes; got 0");
  CHECK_REFUSES(problem({1, 1, {}, {1}, true}), "at least one term");
  CHECK_REFUSES(problem({1, 1, {{}}, {1}, true}), "at least one sender host");
  CHECK_REFUSES(problem({1, 1, {{4}}, {1}, true}), "got none for host 4");
  CHECK_REFUSES(problem({1, 1, {{0}}, {-1}, true}), "got none for host -1");
  CHECK_REFUSES(problem({most, 1, {{0}}, {1}, true}), "fewer than 2**61");
  CHECK_REFUSES(problem({1, 1, {{0}}, {1}, true}, kEqual, 0), "at least one chunk");
  CHECK_REFUSES(problem({1, 1, {{0}}, {0}, true}, {{0.0}, 0.0}), "from 1e-100 to 1e100");
  CHECK_REFUSES(problem({1, 1, {{0}}, {0}, true}, {{1.0}, -1.0}), "from 0 to 1e100");
  CHECK_REFUSES(problem({1, 1, {{0}}, {0}, true}, {std::vector<double>(16385, 1.0), 0.0}),
                "at most 16384 hosts");
}

// Runs all methods and strategies over flows of all kinds, mainly for the sanitizers.
void random_flows_are_sent_whole() {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    const std::size_t n_hosts = 1 + random() % 6;
    const auto hosts = [&](std::size_t least) {
      std::vector<Host> result(least + random() % 4);
      std::generate(result.begin(), result.end(), [&] { return below(n_hosts); });
      return result;
    };
    std::vector<Flow> flows(random() % 9);
    for (Flow& flow : flows) {
      flow = {below(2) ? below(50) : std::int64_t{1} << below(50), 1 + below(8), {}, hosts(0),
              random() % 2 == 0};
      for (std::size_t i = 0; i <= random() % 3; ++i) {
        flow.senders.push_back(hosts(1));
      }
    }
    std::vector<double> rates(n_hosts);
    std::generate(rates.begin(), rates.end(), [&] { return below(3) ? 1.0 : 1e9; });
    for (const Strategy strategy :
         {Strategy::broadcast, Strategy::send_recv, Strategy::local_allgather,
          Strategy::global_allgather, Strategy::signal}) {
      const Problem problem(flows, {rates, 1e-3}, strategy, 1 + below(100));
      CHECK(lower_bound_s(problem) >= 0);
      for (const Method method : {Method::naive, Method::load_balance, Method::dfs, Method::greedy,
                                  Method::ensemble, Method::all_at_once}) {
        std::vector<std::int64_t> sent(flows.size(), 0);
        for (const Send& send : search(problem, method, random() % 2 == 0, random(), 2000)) {
          const bool copies = flows[send.flow].senders.size() == 1 && send.path.size() > 1;
          sent[send.flow] += (send.stop - send.start) *
                             (copies ? static_cast<std::int64_t>(send.path.size() - 1) : 1);
        }
        for (std::size_t i = 0; i < flows.size(); ++i) {
          const bool copies = flows[i].senders.size() == 1 && !problem.reached(i).empty();
          const auto times = copies ? problem.reached(i).size() : 1;
          CHECK(sent[i] == flows[i].n_bytes * static_cast<std::int64_t>(times));
        }
      }
    }
  }
}

}  // namespace

int main() {
  shares_are_least_for_the_busiest();
  broadcast_passes_hosts_in_a_row();
  all_at_once_shares_a_port();
  nothing_to_send_is_no_time();
  deep_searches_are_refused_and_broad_ones_end();
  refuses_what_has_no_meaning();
  random_flows_are_sent_whole();
}
