// Reads options from a TOML file: one table, whose keys are names of options. The only code that knows TOML.
// Used by config.cpp (--config) and workload.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/option.h"
#include "protocols/result.h"

namespace seer {

/// The only table of a file.
struct TomlTable {
  std::string name;                  // [name]
  std::vector<OptionGroup> options;  // its keys
  std::string keys;                  // describes the valid keys, to end "unknown key: expected ..."
};

/// Sets the options that the file names; the others stay as they are. On error some may be set.
/// Errors: kNotFound, kInvalidArgument (one sentence: file, line, key, value, what was expected).
Status apply_toml_file(const std::string& path, const TomlTable& table);
/// Does the same for a text, which errors call `name`.
Status apply_toml_text(std::string_view text, const std::string& name, const TomlTable& table);

}  // namespace seer
