#include "crossmesh/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"

using crossmesh::copy_box;
using crossmesh::Index;
using crossmesh::View;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

using Items = std::vector<std::uint16_t>;

// A C-contiguous view of `items`.
View<std::byte> view(Items& items, const Index& shape) {
  Index strides(shape.size());
  std::int64_t stride = sizeof(std::uint16_t);
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return {reinterpret_cast<std::byte*>(items.data()), shape, strides};
}

View<const std::byte> read(Items& items, const Index& shape) {
  const View<std::byte> whole = view(items, shape);
  return {whole.data, whole.shape, whole.strides};
}

Items numbers(std::size_t count) {
  Items items;
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back(static_cast<std::uint16_t>(i));
  }
  return items;
}

void packs_and_unpacks() {
  Items whole = numbers(12);
  Items packed(4);
  copy_box(view(packed, {2, 2}), {0, 0}, read(whole, {3, 4}), {1, 1}, {2, 2}, 2);
  CHECK((packed == Items{5, 6, 9, 10}));
  Items unpacked(12);
  copy_box(view(unpacked, {3, 4}), {0, 2}, read(packed, {2, 2}), {0, 0}, {2, 2}, 2);
  CHECK((unpacked == Items{0, 0, 5, 6, 0, 0, 9, 10, 0, 0, 0, 0}));
}

void follows_strides_of_any_sign() {
  Items whole = numbers(6);
  Items transposed(6);
  View<const std::byte> columns = read(whole, {2, 3});
  columns.shape = {3, 2};
  columns.strides = {2, 6};
  copy_box(view(transposed, {3, 2}), {0, 0}, columns, {0, 0}, {3, 2}, 2);
  CHECK((transposed == Items{0, 3, 1, 4, 2, 5}));

  Items reversed(6);
  View<const std::byte> backwards = read(whole, {6});
  backwards.data += 10;
  backwards.strides = {-2};
  copy_box(view(reversed, {6}), {0}, backwards, {0}, {6}, 2);
  CHECK((reversed == Items{5, 4, 3, 2, 1, 0}));
}

void copies_a_scalar_and_nothing() {
  Items from = {7};
  Items to = {0};
  copy_box(view(to, {1}), {1}, read(from, {1}), {0}, {0}, 2);
  CHECK(to[0] == 0);
  copy_box(view(to, {}), {}, read(from, {}), {}, {}, 2);
  CHECK(to[0] == 7);
}

void refuses_boxes_outside() {
  Items from = numbers(4);
  Items to(4);
  const auto copy = [&](const Index& dst_start, const Index& src_start, const Index& extent) {
    copy_box(view(to, {4}), dst_start, read(from, {4}), src_start, extent, 2);
  };
  CHECK_REFUSES(copy({1}, {0}, {4}), "in a destination of shape=(4,)");
  CHECK_REFUSES(copy({0}, {1}, {4}), "in a source of shape=(4,)");
  CHECK_REFUSES(copy({0}, {-1}, {1}), "inside its array");
  CHECK_REFUSES(copy({0}, {0}, {-1}), "inside its array");
  CHECK_REFUSES(copy({kMost}, {0}, {kMost}), "inside its array");
  CHECK_REFUSES(copy({kMost}, {0}, {1}), "inside its array");
  CHECK_REFUSES(copy({}, {0}, {1}), "inside its array");
  CHECK_REFUSES(copy_box(view(to, {4}), {0}, read(from, {4}), {0}, {1}, 0), "itemsize=0");
  CHECK((to == Items(4)));
}

void refuses_overlap() {
  Items items = numbers(4);
  CHECK_REFUSES(copy_box(view(items, {4}), {0}, read(items, {4}), {1}, {2}, 2), "must not overlap");
  copy_box(view(items, {4}), {0}, read(items, {4}), {2}, {2}, 2);
  CHECK((items == Items{2, 3, 2, 3}));
}

using Bytes = std::vector<std::uint8_t>;

std::byte* raw(Bytes& bytes) { return reinterpret_cast<std::byte*>(bytes.data()); }

// Packs and unpacks every part of the columns 1 to 3 of a 2 x 4 matrix, whose runs have 4 bytes,
// and of the whole matrix, which is one run.
void packs_and_unpacks_every_part() {
  for (const std::int64_t columns : {2, 4}) {
    Items whole = numbers(8);
    View<const std::byte> source = read(whole, {2, columns});
    source.data += columns == 2 ? 2 : 0;
    source.strides = {8, 2};
    const std::int64_t all = 4 * columns;
    Bytes row(static_cast<std::size_t>(all));
    crossmesh::pack(raw(row), source, 0, all, 2);
    for (std::int64_t first = 0; first <= all; ++first) {
      for (std::int64_t last = first; last <= all; ++last) {
        Bytes part(static_cast<std::size_t>(last - first));
        crossmesh::pack(raw(part), source, first, last - first, 2);
        CHECK((part == Bytes(row.begin() + first, row.begin() + last)));

        Items copy(8);
        View<std::byte> target = view(copy, {2, columns});
        target.data += columns == 2 ? 2 : 0;
        target.strides = {8, 2};
        crossmesh::unpack(target, first, raw(part), last - first, 2);
        Bytes again(static_cast<std::size_t>(all));
        crossmesh::pack(raw(again), {target.data, target.shape, target.strides}, 0, all, 2);
        Bytes expected(static_cast<std::size_t>(all));
        std::copy(part.begin(), part.end(), expected.begin() + first);
        CHECK(again == expected);
        CHECK(columns == 4 || (copy[0] == 0 && copy[3] == 0 && copy[4] == 0 && copy[7] == 0));
      }
    }
  }
}

void packs_elements_of_every_size_in_any_order() {
  for (const std::int64_t size : {1, 2, 3, 4, 8, 16, 24}) {
    Bytes whole;
    for (std::int64_t i = 0; i < 6 * size; ++i) {
      whole.push_back(static_cast<std::uint8_t>(i));
    }
    const View<const std::byte> columns = {raw(whole), {3, 2}, {size, 3 * size}};
    Bytes packed(whole.size());
    crossmesh::pack(raw(packed), columns, 0, 6 * size, size);
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t from = (i % 2 * 3 + i / 2) * size;
      CHECK(std::equal(packed.begin() + i * size, packed.begin() + (i + 1) * size,
                       whole.begin() + from));
    }
  }
}

// Runs whose lengths and sums are around the limits at which copy_row.cpp copies them differently:
// checks the bytes that arrive, and that nothing between the runs is written.
void packs_and_unpacks_runs_of_every_length() {
  for (const std::int64_t mebibytes : {1, 3, 17}) {
    const std::int64_t whole = mebibytes * 1024 * 1024;
    for (const std::int64_t run : {1000, 1023, 1024, 1025, 1087, 4096, 10007, 65535, 65536}) {
      const std::int64_t count = whole / run + 1;
      const std::int64_t stride = run + 37;  // so that runs begin anywhere in a cache line
      Bytes source(static_cast<std::size_t>(count * stride));
      for (std::size_t i = 0; i < source.size(); ++i) {
        source[i] = static_cast<std::uint8_t>(1 + i % 251);  // never 0
      }
      Bytes packed(static_cast<std::size_t>(count * run));
      crossmesh::pack(raw(packed), {raw(source), {count, run}, {stride, 1}}, 0, count * run, 1);
      Bytes target(source.size());
      crossmesh::unpack({raw(target), {count, run}, {stride, 1}}, 0, raw(packed), count * run, 1);
      bool same = true;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto from = source.begin() + i * stride;
        const auto to = target.begin() + i * stride;
        same = same && std::equal(from, from + run, packed.begin() + i * run);
        same = same && std::equal(from, from + run, to);
        same = same && std::count(to + run, to + stride, 0) == stride - run;
      }
      CHECK(same);

      // The same runs from the last to the first, and only a part of them.
      Bytes part(static_cast<std::size_t>(count * run - 300));
      const View<const std::byte> back = {
          raw(source) + (count - 1) * stride, {count, run}, {-stride, 1}};
      crossmesh::pack(raw(part), back, 100, count * run - 300, 1);
      same = true;
      for (std::int64_t i = 1; i + 1 < count; ++i) {
        const auto from = source.begin() + (count - 1 - i) * stride;
        same = same && std::equal(from, from + run, part.begin() + i * run - 100);
      }
      CHECK(same);
    }
  }
}

void refuses_parts_outside() {
  Items items = numbers(4);
  Bytes bytes(8);
  const auto pack = [&](std::int64_t first, std::int64_t count) {
    crossmesh::pack(raw(bytes), read(items, {4}), first, count, 2);
  };
  CHECK_REFUSES(pack(1, 8), "first=1 and 8 bytes of 8");
  CHECK_REFUSES(pack(-1, 1), "must lie inside its array");
  CHECK_REFUSES(pack(0, -1), "must lie inside its array");
  CHECK_REFUSES(pack(kMost, kMost), "must lie inside its array");
  CHECK_REFUSES(crossmesh::unpack(view(items, {4}), 4, raw(bytes), 5, 2), "5 bytes of 8");
  CHECK_REFUSES(crossmesh::pack(raw(bytes), read(items, {4}), 0, 1, 0), "itemsize=0");
  const auto self = reinterpret_cast<std::byte*>(items.data());
  CHECK_REFUSES(crossmesh::pack(self, read(items, {4}), 0, 2, 2), "must not overlap");
  CHECK_REFUSES(crossmesh::unpack(view(items, {4}), 0, self, 2, 2), "must not overlap");
}

}  // namespace

int main() {
  packs_and_unpacks_every_part();
  packs_elements_of_every_size_in_any_order();
  packs_and_unpacks_runs_of_every_length();
  refuses_parts_outside();
  packs_and_unpacks();
  follows_strides_of_any_sign();
  copies_a_scalar_and_nothing();
  refuses_boxes_outside();
  refuses_overlap();
}
