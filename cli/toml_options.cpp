#include "cli/toml_options.h"

#include <toml++/toml.h>

#include <iomanip>
#include <sstream>
#include <string_view>

namespace seer {
namespace {

ValueType type_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return ValueType::kText;
    case toml::node_type::integer:
      return ValueType::kInteger;
    case toml::node_type::floating_point:
      return ValueType::kNumber;
    case toml::node_type::boolean:
      return ValueType::kBoolean;
    default:
      return ValueType::kOther;
  }
}

/// The value as set_option() reads it. REQUIRES: not a table, list or date.
std::string text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return cat(integer->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  std::ostringstream out;  // 17 digits bring back the same double
  out << std::setprecision(17) << node.as_floating_point()->get();
  return std::move(out).str();
}

/// The value as the file shows it, for an error.
std::string shown(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_table<decltype(value)>)
      out << "{...}";  // may span lines
    else
      out << toml::node_view<const toml::node>{value};
  });
  return std::move(out).str();
}

Status apply_node(const OptionSpec& spec, const toml::node& node, const std::string& place) {
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument, place, ": ", spec.name, " = ", shown(node), ": expected ", expectation(spec));
  };
  std::vector<std::string> texts;
  const toml::array* entries = node.as_array();
  if ((entries != nullptr) != is_list(spec)) return wrong();
  if (entries)
    for (const toml::node& entry : *entries) {
      if (!accepts(spec, type_of(entry))) return wrong();
      texts.push_back(text_of(entry));
    }
  else if (accepts(spec, type_of(node)))
    texts.push_back(text_of(node));
  else
    return wrong();
  return set_option(spec, texts).ok() ? Status{} : Status{wrong()};
}

const OptionSpec* find_option(const std::vector<OptionGroup>& groups, std::string_view name) {
  for (const OptionGroup& group : groups)
    for (const OptionSpec& spec : group.options)
      if (spec.name == name) return &spec;
  return nullptr;
}

Error wrong_toml(const std::string& name, const toml::parse_error& e) {
  return fail(Code::kInvalidArgument, name, ":", e.source().begin.line, ": not TOML: ", e.description());
}

Status apply_root(const toml::table& root, const std::string& name, const TomlTable& expected) {
  for (const auto& [key, node] : root)
    if (key.str() != expected.name || !node.is_table())
      return fail(Code::kInvalidArgument, name, ":", node.source().begin.line, ": unknown key \"", key.str(),
                  "\": expected the table [", expected.name, "]");
  const toml::table* table = root[expected.name].as_table();
  if (!table) return fail(Code::kInvalidArgument, name, ": expected the table [", expected.name, "]");
  for (const auto& [key, node] : *table) {
    const std::string place = cat(name, ":", node.source().begin.line);
    const OptionSpec* spec = find_option(expected.options, key.str());
    if (!spec)
      return fail(Code::kInvalidArgument, place, ": unknown key \"", key.str(), "\": expected ", expected.keys);
    SEER_RETURN_IF_ERROR(apply_node(*spec, node, place));
  }
  return {};
}

}  // namespace

Status apply_toml_file(const std::string& path, const TomlTable& table) {
  try {
    return apply_root(toml::parse_file(path), path, table);
  } catch (const toml::parse_error& e) {
    if (e.source().begin.line == 0) return fail(Code::kNotFound, path, ": ", e.description());
    return wrong_toml(path, e);
  }
}

Status apply_toml_text(std::string_view text, const std::string& name, const TomlTable& table) {
  try {
    return apply_root(toml::parse(text, name), name, table);
  } catch (const toml::parse_error& e) {
    return wrong_toml(name, e);
  }
}

}  // namespace seer
