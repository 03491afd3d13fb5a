// SEER_FIELDS(Type, a, b, ...): lists the fields of a plain struct once, for everything that walks over them
// (messages between actors, tests of round trips). A message has all of its fields listed, in wire order: append only.
#pragma once
#include <type_traits>

#define SEER_FIELDS(Type, ...)                                                        \
  static constexpr const char* kTypeName = #Type;                                     \
  template <class F>                                                                  \
  decltype(auto) visit_fields(F&& fn) { return fn(__VA_ARGS__); }                     \
  template <class F>                                                                  \
  decltype(auto) visit_fields(F&& fn) const { return fn(__VA_ARGS__); }

namespace seer {

template <class T>
concept HasFields = requires { T::kTypeName; };

}  // namespace seer
