// How messages are read, written and printed. Here, once, since every program that starts actors would compile it again.
#include <array>
#include <utility>

#include "protocols/actors.h"

namespace seer {

template <class Inspector, HasFields T>
typename Inspector::result_type inspect(Inspector& f, T& x) {
  return x.visit_fields([&](auto&... fields) { return f(caf::meta::type_name(T::kTypeName), fields...); });
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
  return f(caf::meta::type_name("TokenLog"), tokens, prompt_tokens, caf::meta::load_callback(load));
}

namespace {

using Function = void (*)();

/// Makes the compiler keep inspect() of a message for other files: it is emitted where its address is taken.
template <class T>
std::array<Function, 3> inspectors() {
  if constexpr (HasFields<T>)
    return {reinterpret_cast<Function>(&inspect<caf::serializer, T>), reinterpret_cast<Function>(&inspect<caf::deserializer, T>),
            reinterpret_cast<Function>(&inspect<caf::detail::stringification_inspector, T>)};
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
