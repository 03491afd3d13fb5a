// How messages are read, written and printed. In one file, since compiling it takes long.
#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "protocols/actors.h"

namespace seer {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
concept Number = std::is_arithmetic_v<T> && sizeof(T) > 1;

/// Numbers that travel in one piece, as they are in memory; CAF would handle each by itself.
template <Number T>
struct NumberBlock {
  std::vector<T>& numbers;
};

template <class Inspector>
constexpr bool kReads = std::is_base_of_v<caf::deserializer, Inspector>;
template <class Inspector>
constexpr bool kWrites = std::is_base_of_v<caf::serializer, Inspector>;

template <class Inspector, Number T>
caf::error inspect(Inspector& f, NumberBlock<T>& block) {
  constexpr size_t kAtOnce = size_t{1} << 14;  // memory is taken as numbers come, whatever count a message claims
  size_t left = block.numbers.size();
  if (auto error = f.begin_sequence(left)) return error;
  if constexpr (kReads<Inspector>) {
    block.numbers.clear();
    while (left > 0) {
      const size_t had = block.numbers.size(), next = std::min(left, kAtOnce);
      block.numbers.resize(had + next);
      if (auto error = f.apply_raw(next * sizeof(T), block.numbers.data() + had)) return error;
      left -= next;
    }
  } else if (left > 0) {
    if (auto error = f.apply_raw(left * sizeof(T), block.numbers.data())) return error;
  }
  return f.end_sequence();
}

/// How a field travels: as itself, or as a block.
template <class Inspector, class T>
T& on_wire(T& field) {
  return field;
}
template <class Inspector, Number T>
  requires(kReads<Inspector> || kWrites<Inspector>)
NumberBlock<T> on_wire(std::vector<T>& field) {
  return {field};
}

}  // namespace

template <class Inspector, HasFields T>
typename Inspector::result_type inspect(Inspector& f, T& x) {
  return x.visit_fields([&]<class... Fields>(Fields&... fields) {
    std::tuple<decltype(on_wire<Inspector>(fields))...> all(on_wire<Inspector>(fields)...);
    return std::apply([&](auto&... each) { return f(caf::meta::type_name(T::kTypeName), each...); }, all);
  });
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenLog& log) {
  std::vector<int32_t> tokens = log.tokens();
  int64_t prompt_tokens = log.prompt_tokens();
  const auto load = [&]() -> caf::error {
    if (prompt_tokens < 0 || prompt_tokens > std::ssize(tokens)) return caf::sec::invalid_argument;
    log = TokenLog(tokens, prompt_tokens);
    return {};
  };
  auto&& travelling = on_wire<Inspector>(tokens);
  return f(caf::meta::type_name("TokenLog"), travelling, prompt_tokens, caf::meta::load_callback(load));
}

namespace {

using Function = void (*)();

/// Makes the compiler keep inspect() of a message for other files: it is emitted where its address is taken.
template <class T>
std::array<Function, 3> inspectors() {
  if constexpr (HasFields<T>)
    return {reinterpret_cast<Function>(&seer::inspect<caf::serializer, T>), reinterpret_cast<Function>(&seer::inspect<caf::deserializer, T>),
            reinterpret_cast<Function>(&seer::inspect<caf::detail::stringification_inspector, T>)};
  else
    return {};
}

template <size_t... I>
auto all_inspectors(std::index_sequence<I...>) {
  return std::array{inspectors<typename caf::type_by_id<static_cast<caf::type_id_t>(caf::id_block::seer::begin + I)>::type>()...};
}

}  // namespace

extern const auto kAllInspectors = all_inspectors(std::make_index_sequence<caf::id_block::seer::end - caf::id_block::seer::begin>());

void add_messages(caf::actor_system_config& config) { config.add_message_types<caf::id_block::seer>(); }

}  // namespace seer
