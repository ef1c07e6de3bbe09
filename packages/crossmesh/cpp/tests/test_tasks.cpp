#include "crossmesh/tasks.hpp"

#include <map>

#include "check.hpp"

using crossmesh::Box;
using crossmesh::Index;
using crossmesh::Shard;
using crossmesh::unit_tasks;
using crossmesh::UnitTask;

namespace {

using Devices = std::vector<std::int64_t>;

const std::map<std::int64_t, std::int64_t> kHostOf = {{0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 2}};

void cuts_where_either_side_is_cut() {
  const auto tasks = unit_tasks({6}, {{0, {{0, 3}}}, {1, {{3, 6}}}}, {{2, {{0, 2}}}, {3, {{2, 6}}}},
                                kHostOf, false);
  CHECK(tasks.size() == 3);
  CHECK(tasks[0].box == (Box{{0, 2}}) && tasks[0].senders == Devices{0} &&
        tasks[0].receivers == Devices{2});
  CHECK(tasks[1].box == (Box{{2, 3}}) && tasks[1].senders == Devices{0} &&
        tasks[1].receivers == Devices{3});
  CHECK(tasks[2].box == (Box{{3, 6}}) && tasks[2].senders == Devices{1} &&
        tasks[2].receivers == Devices{3});
}

void replica_on_the_host_serves_it() {
  const Box all = {{0, 6}};
  const std::vector<Shard> src = {{0, all}, {2, all}};
  const std::vector<Shard> dst = {{4, all}, {3, all}, {1, all}};
  const auto tasks = unit_tasks({6}, src, dst, kHostOf, false);
  CHECK(tasks.size() == 3);
  CHECK(tasks[0].receivers == Devices{1});
  CHECK(tasks[1].receivers == Devices{3});
  CHECK(tasks[2].receivers == Devices{4});
  for (const UnitTask& task : tasks) {
    CHECK((task.senders == Devices{0, 2}));
  }
}

void one_receiver_each_if_asked() {
  const Box all = {};
  const std::vector<Shard> dst = {{3, all}, {2, all}, {4, all}};
  CHECK(unit_tasks({}, {{0, all}}, dst, kHostOf, false).size() == 1);
  const auto tasks = unit_tasks({}, {{0, all}}, dst, kHostOf, true);
  CHECK(tasks.size() == 3);
  CHECK(tasks[0].receivers == Devices{2});
  CHECK(tasks[2].receivers == Devices{4});
}

void nothing_to_send_makes_no_task() {
  CHECK(unit_tasks({0, 4}, {{0, {{0, 0}, {0, 4}}}}, {{2, {{0, 0}, {0, 4}}}}, kHostOf, false).empty());
  CHECK(unit_tasks({4}, {{0, {{0, 4}}}}, {}, kHostOf, false).empty());
  CHECK(unit_tasks({4}, {{0, {{0, 4}}}}, {{2, {{4, 4}}}}, kHostOf, false).empty());
}

void refuses_sources_that_do_not_tile() {
  CHECK_REFUSES(unit_tasks({4}, {}, {}, kHostOf, false), "4 elements of shape=(4,)");
  CHECK_REFUSES(unit_tasks({4}, {{0, {{0, 3}}}, {1, {{2, 4}}}}, {}, kHostOf, false),
                "equal or disjoint");
  CHECK_REFUSES(unit_tasks({4}, {{0, {{0, 4}}}, {0, {{0, 4}}}}, {}, kHostOf, false),
                "got two of device 0");
  CHECK_REFUSES(unit_tasks({4}, {{7, {{0, 4}}}}, {}, kHostOf, false), "got none for device 7");
  CHECK_REFUSES(unit_tasks({-4}, {}, {}, kHostOf, false), "must not be negative");
}

}  // namespace

int main() {
  cuts_where_either_side_is_cut();
  replica_on_the_host_serves_it();
  one_receiver_each_if_asked();
  nothing_to_send_makes_no_task();
  refuses_sources_that_do_not_tile();
}
