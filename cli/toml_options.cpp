#include "cli/toml_options.h"

#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string_view>

#include "cli/suggestion.h"

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
  const auto wrong = [&](const std::string& expected) {
    return fail(Code::kInvalidArgument, place, ": ", spec.name, " = ", shown_value(shown(node)), ": expected ", expected);
  };
  std::vector<std::string> texts;
  const toml::array* entries = node.as_array();
  if ((entries != nullptr) != is_list(spec)) return wrong(cat(is_list(spec) && std::holds_alternative<OneOf>(spec.check) ? "a list of " : "", expectation(spec)));
  if (entries)
    for (const toml::node& entry : *entries) {
      if (!accepts(spec, type_of(entry))) return wrong(expectation(spec));
      texts.push_back(text_of(entry));
    }
  else if (accepts(spec, type_of(node)))
    texts.push_back(text_of(node));
  else
    return wrong(expectation(spec));
  const Status set = set_option(spec, texts);
  return set.ok() ? Status{} : Status{wrong(set.error().detail)};
}

std::vector<std::string> names_of(const std::vector<OptionGroup>& groups) {
  std::vector<std::string> names;
  for (const OptionGroup& group : groups)
    for (const OptionSpec& spec : group.options) names.push_back(spec.name);
  return names;
}

const OptionSpec* find_option(const std::vector<OptionGroup>& groups, std::string_view name) {
  for (const OptionGroup& group : groups)
    for (const OptionSpec& spec : group.options)
      if (spec.name == name) return &spec;
  return nullptr;
}

/// The library begins most of its descriptions with "Error while parsing (what): ".
Error wrong_toml(const std::string& name, const toml::parse_error& e) {
  std::string why{e.description()};
  if (const size_t colon = why.find(": "); why.starts_with("Error while parsing ") && colon != std::string::npos)
    why.erase(0, colon + 2);
  return fail(Code::kInvalidArgument, name, ":", e.source().begin.line, ": not TOML: ", why);
}

Status apply_root(const toml::table& root, const std::string& name, const TomlTable& expected) {
  for (const auto& [key, node] : root)
    if (key.str() != expected.name || !node.is_table())
      return fail(Code::kInvalidArgument, name, ":", node.source().begin.line, ": unknown key \"", shown_value(key.str()),
                  "\": expected the table [", expected.name, "]");
  const toml::table* table = root[expected.name].as_table();
  if (!table) return fail(Code::kInvalidArgument, name, ": expected the table [", expected.name, "]");
  for (const auto& [key, node] : *table) {
    const std::string place = cat(name, ":", node.source().begin.line);
    const OptionSpec* spec = find_option(expected.options, key.str());
    if (!spec)
      return fail(Code::kInvalidArgument, place, ": unknown key \"", shown_value(key.str()), "\": expected ", expected.keys,
                  did_you_mean(key.str(), names_of(expected.options)));
    SEER_RETURN_IF_ERROR(apply_node(*spec, node, place));
  }
  return {};
}

}  // namespace

Status apply_toml_file(const std::string& path, const TomlTable& table) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);  // opens, but cannot be read
  std::ifstream file(path, std::ios::binary);
  if (is_folder || !file)
    return fail(Code::kNotFound, "cannot read ", path, ": ", std::strerror(is_folder ? EISDIR : errno));
  return apply_toml_text(std::string(std::istreambuf_iterator<char>(file), {}), path, table);
}

Status apply_toml_text(std::string_view text, const std::string& name, const TomlTable& table) {
  try {
    return apply_root(toml::parse(text, name), name, table);
  } catch (const toml::parse_error& e) {
    return wrong_toml(name, e);
  }
}

}  // namespace seer
