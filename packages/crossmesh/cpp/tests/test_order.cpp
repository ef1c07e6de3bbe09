#include "crossmesh/order.hpp"

#include <limits>

#include "check.hpp"

using crossmesh::finish_s;
using crossmesh::OldJob;
using crossmesh::order_jobs;

namespace {

using Order = std::vector<std::size_t>;

void jobs_wait_for_their_ports() {
  const std::vector<OldJob> jobs = {{1.0, {0, 10}, 2}, {2.0, {0, 11}, 2}, {4.0, {1, 11}, 2}};
  CHECK(finish_s(jobs, {0, 1, 2}) == 7.0);
  CHECK(finish_s(jobs, {2, 0, 1}) == 6.0);
  CHECK(finish_s({{3.0, {}, 1}, {2.0, {}, 1}}, {0, 1}) == 3.0);
}

void rounds_run_what_shares_no_port() {
  std::vector<OldJob> jobs;
  for (std::int64_t sender = 0; sender < 4; ++sender) {
    for (std::int64_t receiver = 10; receiver < 14; ++receiver) {
      jobs.push_back({1.0, {sender, receiver}, 2});
    }
  }
  CHECK(finish_s(jobs, order_jobs(jobs)) == 4.0);
}

void many_jobs_stay_within_the_budget() {
  const std::vector<OldJob> jobs(3000, OldJob{1.0, {0, 1}, 2});
  const Order order = order_jobs(jobs);
  CHECK(finish_s(jobs, order) == 3000.0);
}

void any_port_number_will_do() {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(order_jobs({{1.0, {-most - 1, most}, 1}}) == Order{0});
}

void refuses_jobs_and_orders_without_meaning() {
  CHECK(order_jobs({}).empty());
  CHECK_REFUSES(order_jobs({{-1.0, {}, 1}}), "finite and not negative");
  CHECK_REFUSES(order_jobs({{std::numeric_limits<double>::infinity(), {}, 1}}), "finite");
  CHECK_REFUSES(order_jobs({{1.0, {}, -1}}), "must not be negative; got -1");
  CHECK_REFUSES(finish_s({{1.0, {}, 1}}, {}), "every job exactly once");
  CHECK_REFUSES(finish_s({{1.0, {}, 1}}, {1}), "every job exactly once");
  CHECK_REFUSES(finish_s({{1.0, {}, 1}, {1.0, {}, 1}}, {0, 0}), "every job exactly once");
}

}  // namespace

int main() {
  jobs_wait_for_their_ports();
  rounds_run_what_shares_no_port();
  many_jobs_stay_within_the_budget();
  any_port_number_will_do();
  refuses_jobs_and_orders_without_meaning();
}
