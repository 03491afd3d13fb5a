// Sends every message registered in protocols/actors.h through CAF's binary serializer and back. The types come from
// the registration block itself, so that a new message is covered as soon as it is registered.
#include <doctest/doctest.h>

#include <algorithm>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/recorder.h"

using namespace seer;

namespace {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsHandle : std::false_type {};
template <class... Ts>
struct IsHandle<caf::typed_actor<Ts...>> : std::true_type {};

/// Gives every field, at any depth, a value that no other field and no default has.
struct Fill {
  caf::actor peer;
  int64_t last = 100;

  template <class T>
  void operator()(T& x) {
    if constexpr (HasFields<T>)
      x.visit_fields([&](auto&... fields) { ((*this)(fields), ...); });
    else if constexpr (IsVector<T>::value)
      for (int i = 0; i < 2; ++i) (*this)(x.emplace_back());
    else if constexpr (IsHandle<T>::value)
      x = caf::actor_cast<T>(peer);
    else if constexpr (std::is_same_v<T, TokenLog>)
      last += 2, x = TokenLog(std::vector<int32_t>(3000, static_cast<int32_t>(last)), last - 1);
    else if constexpr (std::is_same_v<T, std::string>)
      x = cat("text ", ++last);
    else if constexpr (std::is_same_v<T, bool>)
      x = !x;
    else if constexpr (std::is_enum_v<T>)
      x = static_cast<T>(x == static_cast<T>(1) ? 2 : 1);
    else if constexpr (std::is_floating_point_v<T>)
      x = static_cast<T>(++last) + T(0.25);
    else
      x = static_cast<T>(sizeof(T) == 8 ? ++last * 0x200000001 : ++last);  // both halves of a word of 8 bytes
  }
};

/// All of a value in words, for comparison.
template <class T>
std::string words(const T& x) {
  std::string text;
  if constexpr (HasFields<T>) {
    x.visit_fields([&](const auto&... fields) { ((text += words(fields) + ","), ...); });
    return cat(T::kTypeName, "{", text, "}");
  } else if constexpr (IsVector<T>::value) {
    for (const auto& element : x) text += words(element) + ",";
    return cat("[", text, "]");
  } else if constexpr (std::is_same_v<T, TokenLog>) {
    return words(x.tokens()) + words(x.prompt_tokens());
  } else if constexpr (IsHandle<T>::value) {
    return x ? cat("actor ", x.id()) : "no actor";
  } else if constexpr (std::is_enum_v<T>) {
    return cat(static_cast<int>(x));
  } else if constexpr (std::is_floating_point_v<T>) {
    return cat(static_cast<int64_t>(x * 4));
  } else {
    return cat(x);
  }
}

template <class T>
void check_round_trip(SimWorld& world, const caf::actor& peer) {
  T sent{};
  const std::string empty = words(sent);
  Fill{peer}(sent);
  CAPTURE(words(sent));
  CHECK(words(sent) != empty);
  std::vector<char> bytes;
  caf::binary_serializer out(world.system, bytes);
  REQUIRE_FALSE(static_cast<bool>(out(sent)));
  T received{};
  caf::binary_deserializer in(world.system, bytes);
  REQUIRE_FALSE(static_cast<bool>(in(received)));
  CHECK(words(received) == words(sent));
  // A message that is cut off is an error, not a smaller message.
  bytes.pop_back();
  T cut{};
  caf::binary_deserializer in_cut(world.system, bytes);
  CHECK(static_cast<bool>(in_cut(cut)));
}

constexpr auto kFirst = caf::id_block::seer::begin;
constexpr auto kCount = caf::id_block::seer::end - caf::id_block::seer::begin;

template <class F, size_t... I>
void for_each_registered(F&& visit, std::index_sequence<I...>) {
  (visit(std::type_identity<typename caf::type_by_id<kFirst + I>::type>{}), ...);
}

}  // namespace

TEST_CASE("messages: tokens that are more than a block survive the wire, and a count that is a lie takes no memory") {
  SimWorld world;
  const auto bytes_of = [&](RolloutCommits& sent) {
    std::vector<char> bytes;
    caf::binary_serializer out(world.system, bytes);
    REQUIRE_FALSE(static_cast<bool>(out(sent)));
    return bytes;
  };
  RolloutCommits sent{.parts = {{.output = {std::vector<int32_t>(100'000), std::vector<float>(40'000)}}}}, received;
  std::vector<int32_t>& tokens = sent.parts[0].output.ids;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 977);
  for (size_t i = 0; i < sent.parts[0].output.logprobs.size(); ++i) sent.parts[0].output.logprobs[i] = -0.001f * static_cast<float>(i);
  const std::vector<char> whole = bytes_of(sent);
  CHECK(whole.size() < 560'100);  // four bytes each
  caf::binary_deserializer in(world.system, whole);
  REQUIRE_FALSE(static_cast<bool>(in(received)));
  CHECK(received.parts.at(0).output.ids == tokens);
  CHECK(received.parts.at(0).output.logprobs == sent.parts[0].output.logprobs);

  tokens = {0x7a7a7a7a};
  std::vector<char> lie = bytes_of(sent);
  const auto count = std::search_n(lie.begin(), lie.end(), 4, 'z') - 1;
  REQUIRE(*count == 1);
  const char claimed[] = {'\xff', '\xff', '\xff', '\xff', '\x7f'};  // as CAF writes a count, of 2^35 - 1
  lie.insert(lie.erase(count), std::begin(claimed), std::end(claimed));
  caf::binary_deserializer in_lie(world.system, lie);
  CHECK(static_cast<bool>(in_lie(received)));
}

TEST_CASE("messages: every registered type survives the wire, all fields of it") {
  SimWorld world;
  Recorder<EstimateSink, GroupEstimate> recorder(world);
  const auto peer = caf::actor_cast<caf::actor>(recorder.handle());
  size_t count = 0;
  for_each_registered(
      [&]<class T>(std::type_identity<T>) {
        ++count;
        check_round_trip<T>(world, peer);
      },
      std::make_index_sequence<kCount>{});
  CHECK(count == kCount);
  CHECK(count >= 42);
}

TEST_CASE("messages: a log whose prompt is longer than its tokens is refused") {
  SimWorld world;
  for (const int64_t prompt_tokens : {-1, 0, 3, 4}) {
    std::vector<char> bytes;
    std::vector<int32_t> tokens{5, 6, 7};
    caf::binary_serializer out(world.system, bytes);
    REQUIRE_FALSE(static_cast<bool>(out(tokens, prompt_tokens)));
    TokenLog log;
    caf::binary_deserializer in(world.system, bytes);
    CHECK(static_cast<bool>(in(log)) == (prompt_tokens < 0 || prompt_tokens > 3));
    CHECK(log.size() == (prompt_tokens < 0 || prompt_tokens > 3 ? 0 : 3));
  }
}

TEST_CASE("messages: an empty handle survives the wire too") {
  SimWorld world;
  RunChunk sent{};
  std::vector<char> bytes;
  caf::binary_serializer out(world.system, bytes);
  REQUIRE_FALSE(static_cast<bool>(out(sent)));
  RunChunk received{};
  caf::binary_deserializer in(world.system, bytes);
  REQUIRE_FALSE(static_cast<bool>(in(received)));
  CHECK_FALSE(static_cast<bool>(received.reply_to));
}
