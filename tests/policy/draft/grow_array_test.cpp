#include "actors/policy/draft/grow_array.h"

#include <doctest/doctest.h>

#include <cerrno>

using namespace seer;

namespace {

constexpr size_t kPage = PageBin::kPageBytes;
constexpr size_t kMapped = 300'000;  // values of 4 B: far more than what stays on the heap

GrowArray<uint32_t> counted_to(size_t count) {
  GrowArray<uint32_t> values;
  for (uint32_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}
size_t wrong_in(const GrowArray<uint32_t>& values, size_t count) {
  size_t wrong = values.size() != count;
  for (size_t i = 0; i < values.size(); ++i) wrong += values[i] != i;
  return wrong;
}
/// Whether the system has a mapping there.
bool is_mapped(const void* page) {
  unsigned char resident = 0;
  return mincore(const_cast<void*>(page), 1, &resident) == 0 || errno != ENOMEM;
}
size_t pages_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

TEST_CASE("grow array: values are kept through every growth, from the heap to a mapping and on") {
  GrowArray<uint32_t> values;
  size_t wrong = 0;
  for (uint32_t i = 0; i < kMapped; ++i) {
    values.push_back(i);
    if (i % 10'007 == 0) wrong += wrong_in(values, i + 1);
  }
  CHECK(wrong == 0);
  CHECK(wrong_in(values, kMapped) == 0);
  CHECK(values.bytes() == kMapped * 4);
}

TEST_CASE("grow array: add appends a value a number of times and returns the index of the first") {
  GrowArray<uint16_t> values;
  CHECK(values.add(0, 1) == 0);
  CHECK(values.add(3, 7) == 0);
  CHECK(values.add(400'000, 8) == 3);
  CHECK(values.add(1, 9) == 400'003);
  REQUIRE(values.size() == 400'004);
  CHECK(values[2] == 7);
  CHECK(values[3] == 8);
  CHECK(values[400'002] == 8);
  CHECK(values[400'003] == 9);
}

TEST_CASE("grow array: moving takes the values along and leaves an empty array that can be used again") {
  for (const size_t count : {size_t{10}, kMapped}) {
    CAPTURE(count);
    GrowArray<uint32_t> from = counted_to(count);
    const uint32_t* const data = from.data();
    GrowArray<uint32_t> to = std::move(from);
    CHECK(to.data() == data);
    CHECK(wrong_in(to, count) == 0);
    CHECK(from.size() == 0);
    from.push_back(0);
    CHECK(wrong_in(from, 1) == 0);
    from = std::move(to);
    CHECK(wrong_in(from, count) == 0);
  }
}

TEST_CASE("grow array: giving up puts whole pages of the used part into the bin, and none from the heap") {
  PageBin bin;
  GrowArray<uint32_t> small = counted_to(10);
  small.give_up(bin);
  CHECK(bin.bytes() == 0);
  CHECK(small.size() == 0);

  GrowArray<uint32_t> large = counted_to(kMapped);
  const auto* const data = reinterpret_cast<const char*>(large.data());
  const size_t resident = pages_up(large.bytes());
  large.give_up(bin);
  CHECK(bin.bytes() == resident);
  CHECK(is_mapped(data + resident - kPage));
  CHECK_MESSAGE(!is_mapped(data + resident), "the room to grow goes back at once");
  CHECK(large.bytes() == 0);
  large.push_back(0);
  CHECK(wrong_in(large, 1) == 0);
}

TEST_CASE("page bin: pages go back in steps, rounded up to a page, until none is left") {
  PageBin bin;
  GrowArray<uint32_t> values = counted_to(kMapped);
  const auto* const data = reinterpret_cast<const char*>(values.data());
  values.give_up(bin);
  const size_t all = bin.bytes();
  bin.release(0);
  CHECK(bin.bytes() == all);
  bin.release(1);
  CHECK(bin.bytes() == all - kPage);
  CHECK_FALSE(is_mapped(data + all - kPage));
  CHECK(is_mapped(data + all - 2 * kPage));
  bin.release(2 * kPage + 1);
  CHECK(bin.bytes() == all - 4 * kPage);
  bin.release(10 * all);
  CHECK(bin.bytes() == 0);
  CHECK_FALSE(is_mapped(data));
}

TEST_CASE("page bin: it takes over all of another, gives back from several mappings in one step, and the rest at its end") {
  const void* last = nullptr;
  {
    PageBin one, other;
    GrowArray<uint32_t> first = counted_to(kMapped), second = counted_to(kMapped), third = counted_to(kMapped);
    last = first.data();
    first.give_up(one);
    const size_t each = one.bytes();
    second.give_up(other);
    third.give_up(other);
    one.put_all(other);
    CHECK(one.bytes() == 3 * each);
    CHECK(other.bytes() == 0);
    one.release(2 * each + kPage);
    CHECK(one.bytes() == each - kPage);
    other.release(each);  // has nothing to give back
    CHECK(is_mapped(last));
  }
  CHECK_FALSE(is_mapped(last));
}
