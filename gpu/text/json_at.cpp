#include "gpu/text/json_at.h"

#include <nlohmann/json.hpp>

namespace seer {
namespace {
const nlohmann::json kNull;
}

JsonAt JsonAt::at(std::string_view key) const {
  JsonAt child = *this;
  child.path_ += cat(path_.empty() ? "" : ".", key);
  const auto found = value_->is_object() ? value_->find(key) : value_->end();
  child.value_ = found == value_->end() ? &kNull : &*found;
  return child;
}

std::vector<JsonAt> JsonAt::elements() const {
  std::vector<JsonAt> elements;
  if (!is_array()) return elements;
  for (size_t i = 0; i < value_->size(); ++i) {
    JsonAt child = *this;
    child.path_ += cat("[", i, "]");
    child.value_ = &(*value_)[i];
    elements.push_back(std::move(child));
  }
  return elements;
}

bool JsonAt::is_null() const { return value_->is_null(); }
bool JsonAt::is_array() const { return value_->is_array(); }
bool JsonAt::is_object() const { return value_->is_object(); }

Result<std::string> JsonAt::text() const {
  if (!value_->is_string()) return wrong("must be a string");
  return value_->get<std::string>();
}

Result<std::string> JsonAt::text_or(std::string otherwise) const {
  if (is_null()) return otherwise;
  return text();
}

Result<bool> JsonAt::flag_or(bool otherwise) const {
  if (is_null()) return otherwise;
  if (!value_->is_boolean()) return wrong("must be true or false");
  return value_->get<bool>();
}

Result<int64_t> JsonAt::integer() const {
  if (!value_->is_number_integer()) return wrong("must be a whole number");
  return value_->get<int64_t>();
}

}  // namespace seer
