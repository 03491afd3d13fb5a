#include "cli/serve/token_mail.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

TokenMail::Letter letter(uint64_t ticket, uint32_t sample, int64_t first, std::vector<int32_t> tokens, uint64_t version = 1) {
  CommittedTokens part{.first_index = first, .output = {std::move(tokens)}};
  for (const int32_t token : part.output.ids) {
    part.output.logprobs.push_back(-static_cast<float>(token));
    part.output.kept_ids.add(std::vector<int32_t>{token, token + 1});
  }
  return {Ticket{ticket}, sample, std::move(part), WeightVersion{version}};
}

}  // namespace

TEST_CASE("token mail: what goes on is joined with what waits of the same response, and everything else comes in order") {
  TokenMail mail;
  CHECK(mail.put(letter(1, 0, 0, {1, 2})));
  CHECK_FALSE(mail.put(letter(1, 1, 0, {7})));
  CHECK_FALSE(mail.put(letter(1, 0, 2, {3})));
  CHECK_FALSE(mail.put(letter(1, 0, 3, {4, 5})));
  CHECK_FALSE(mail.put(letter(1, 0, 0, {9}, 2)));  // it started anew, with other weights
  CHECK_FALSE(mail.put(letter(1, 0, 1, {8}, 2)));
  CHECK_FALSE(mail.put(letter(1, 1, 0, {7})));  // it started anew
  const auto letters = mail.take();
  REQUIRE(letters.size() == 4);
  const auto is = [&](size_t i, const TokenMail::Letter& right) {
    CHECK(letters[i].ticket == right.ticket);
    CHECK(letters[i].sample == right.sample);
    CHECK(letters[i].version == right.version);
    CHECK(letters[i].part.first_index == right.part.first_index);
    CHECK(letters[i].part.output.ids == right.part.output.ids);
    CHECK(letters[i].part.output.logprobs == right.part.output.logprobs);
    CHECK(letters[i].part.output.kept_ids == right.part.output.kept_ids);
  };
  is(0, letter(1, 0, 0, {1, 2, 3, 4, 5}));
  is(1, letter(1, 1, 0, {7}));
  is(2, letter(1, 0, 0, {9, 8}, 2));
  is(3, letter(1, 1, 0, {7}));
  CHECK(mail.put(letter(1, 0, 2, {6}, 2)));  // what was taken before is not joined with
  mail.close_bag();
  CHECK(mail.put(letter(1, 0, 3, {7}, 2)));
  CHECK_FALSE(mail.put(letter(1, 0, 4, {8}, 2)));
  CHECK(mail.take().size() == 1);
  const auto second = mail.take();
  REQUIRE(second.size() == 1);
  CHECK(second[0].part.output.ids == std::vector<int32_t>{7, 8});
}
