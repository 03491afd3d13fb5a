// JsonAt: one value of a JSON file together with its path, so that every error names file and field
// ("/m/tokenizer.json: pre_tokenizer.behavior must be a string"). A missing field is a null value.
// Borrows the document, which must outlive it.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

namespace seer {

class JsonAt {
 public:
  /// `name` names the document in errors, usually its path.
  JsonAt(const nlohmann::json& value, std::string name) : value_(&value), file_(std::move(name)) {}

  /// A value that errors name as `place`.
  JsonAt(const nlohmann::json& value, const JsonAt& place) : value_(&value), file_(place.file_), path_(place.path_) {}

  JsonAt at(std::string_view key) const;
  /// The elements of an array; none for any other value.
  std::vector<JsonAt> elements() const;

  bool is_null() const;
  bool is_array() const;
  bool is_object() const;
  Result<std::string> text() const;
  Result<std::string> text_or(std::string otherwise) const;  // null: otherwise
  Result<bool> flag_or(bool otherwise) const;
  Result<int64_t> integer() const;
  const nlohmann::json& value() const { return *value_; }

  /// An error about this value: "<file>: <path> <what>".
  template <class... Ts>
  Error wrong(const Ts&... what) const {
    return fail(Code::kInvalidArgument, file_, ": ", path_.empty() ? "the document" : path_, " ", what...);
  }

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace seer
