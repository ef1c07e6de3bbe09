#include "crossmesh/balance.hpp"

#include <limits>

#include "check.hpp"

using crossmesh::balance;
using crossmesh::OldFlow;
using crossmesh::Rates;

namespace {

using Hosts = std::vector<std::int64_t>;

const Rates kEqual = {{0, 1.0}, {1, 1.0}, {2, 1.0}};

void largest_goes_first_to_the_lightest() {
  const std::vector<OldFlow> flows = {{1, {0, 1}, {2}}, {5, {0, 1}, {2}}, {3, {0, 1}, {2}}};
  CHECK((balance(flows, kEqual) == Hosts{1, 0, 1}));
}

void only_a_holder_sends() {
  CHECK((balance({{9, {1}, {2}}, {9, {1}, {2}}}, kEqual) == Hosts{1, 1}));
}

void slow_receiver_makes_senders_equal() {
  const Rates rates = {{0, 1.0}, {1, 10.0}, {2, 0.1}};
  CHECK((balance({{9, {0, 1}, {}}}, rates) == Hosts{1}));
  CHECK((balance({{9, {0, 1}, {2}}}, rates) == Hosts{0}));
}

void refuses_flows_without_meaning() {
  CHECK(balance({}, {}).empty());
  CHECK_REFUSES(balance({{-1, {0}, {}}}, kEqual), "must not be negative; got -1");
  CHECK_REFUSES(balance({{1, {}, {}}}, kEqual), "at least one sender host");
  CHECK_REFUSES(balance({{1, {0}, {7}}}, kEqual), "got none for host 7");
  CHECK_REFUSES(balance({}, {{0, -1.0}}), "positive number of bytes per second");
  CHECK_REFUSES(balance({}, {{0, std::numeric_limits<double>::quiet_NaN()}}), "got nan for host 0");
}

}  // namespace

int main() {
  largest_goes_first_to_the_lightest();
  only_a_holder_sends();
  slow_receiver_makes_senders_equal();
  refuses_flows_without_meaning();
}
