#include "storage/response_history_record.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>

using namespace seer;

TEST_CASE("response history record: tokens of every size come back, and no changed or foreign record is taken for one") {
  const std::vector<int32_t> tokens = {0, 1, 127, 128, 16383, 16384, 151'935, std::numeric_limits<int32_t>::max() - 1};
  constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  const std::string key = to_bytes(ResponseKey{{1, 2}, 3, 4});
  const std::string record = encode_response(key, tokens);
  REQUIRE(decode_response(key, record, kAll).ok());
  CHECK(*decode_response(key, record, kAll) == tokens);
  CHECK(decode_response(key, encode_response(key, {}), kAll)->empty());
  CHECK(decode_response(key, record, 151'936).error().code == Code::kCorrupt);
  CHECK_FALSE(decode_response(to_bytes(ResponseKey{{1, 2}, 3, 5}), record, kAll).ok());  // of another key
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string changed = record;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(decode_response(key, changed, kAll).ok());
  }
  for (size_t bytes = 0; bytes < record.size(); ++bytes)
    CHECK_FALSE(decode_response(key, record.substr(0, bytes), kAll).ok());
}

TEST_CASE("response history record: what is kept of a prompt comes back, and a changed record does not") {
  const PrefixHash prompt = {0x0123456789abcdef, ~uint64_t{5}};
  const std::string record = encode_prompt(prompt, {77, {{9, 0, 100}, {9, 1, 200}, {8, 65535, 4'000'000'000}}});
  const auto found = decode_prompt(prompt, record);
  REQUIRE(found.ok());
  CHECK(found->put_number == 77);
  REQUIRE(found->responses.size() == 3);
  CHECK(found->responses[2].iteration == 8);
  CHECK(found->responses[2].index == 65535);
  CHECK(found->responses[2].bytes == 4'000'000'000);
  CHECK_FALSE(decode_prompt({1, 2}, record).ok());
  CHECK_FALSE(decode_prompt(prompt, record.substr(0, record.size() - 1)).ok());
  CHECK_FALSE(decode_prompt(prompt, encode_response(to_bytes(prompt), std::vector<int32_t>{1, 2})).ok());
  CHECK(*decode_prompt_key(to_bytes(prompt)) == prompt);
  CHECK_FALSE(decode_prompt_key("short").ok());
}

TEST_CASE("response history record: keys of a prompt lie together, newest iteration first") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const ResponseKey a = {{random() % 3, random()}, random() % 300, static_cast<uint16_t>(random() % 300)};
    const ResponseKey b = {{random() % 3, random() % 2 ? a.prompt.lo : random()}, random() % 300,
                           static_cast<uint16_t>(random() % 300)};
    const bool before = a.prompt != b.prompt         ? a.prompt < b.prompt
                        : a.iteration != b.iteration ? a.iteration > b.iteration
                                                     : a.index < b.index;
    CHECK((to_bytes(a) < to_bytes(b)) == before);
  }
}
