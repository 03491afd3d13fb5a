#include "gpu/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

constexpr size_t kIndexed = 12;  // with fewer keys a linear search is faster

/// Text that grows up to a limit.
class BoundedText {
 public:
  explicit BoundedText(size_t bytes_max) : bytes_max_(bytes_max) {}
  std::string& text() { return text_; }
  Status within() const {
    if (text_.size() <= bytes_max_) return {};
    return fail(Code::kFull, "the text of a value is longer than ", bytes_max_, " bytes");
  }

 private:
  std::string text_;
  size_t bytes_max_;
};

Status append_repr(BoundedText& out, const JinjaValue& value);

Status append_repr_items(BoundedText& out, const std::vector<JinjaValue>& items) {
  bool first = true;
  for (const JinjaValue& item : items) {
    if (!first) out.text() += ", ";
    first = false;
    SEER_RETURN_IF_ERROR(append_repr(out, item));
  }
  return {};
}

Status append_repr_object(BoundedText& out, const JinjaValue& value) {
  if (const auto* range = value.object_as<JinjaRange>()) {
    out.text() += cat("range(", to_text(range->start), ", ", to_text(range->stop));
    if (range->step != 1) out.text() += cat(", ", to_text(range->step));
    out.text() += ')';
  } else if (const auto* view = value.object_as<JinjaView>()) {
    out.text() += view->type + "([";
    SEER_RETURN_IF_ERROR(append_repr_items(out, view->items->items));
    out.text() += "])";
  } else {
    out.text() += cat('<', value.type_name(), '>');
  }
  return {};
}

Status append_repr(BoundedText& out, const JinjaValue& value) {
  SEER_RETURN_IF_ERROR(out.within());
  std::string& text = out.text();
  if (value.is_undefined()) {
    text += "Undefined";
  } else if (value.is_none()) {
    text += "None";
  } else if (value.is_bool()) {
    text += *value.integer() ? "True" : "False";
  } else if (value.is_int()) {
    text += to_text(*value.integer());
  } else if (value.is_float()) {
    text += python_repr(value.as_float());
  } else if (value.is_text()) {
    const std::string quoted = python_repr(value.bytes());
    text += value.as_text().safe ? cat("Markup(", quoted, ')') : quoted;
  } else if (const auto list = value.as_list()) {
    text += value.is_list() ? '[' : '(';
    SEER_RETURN_IF_ERROR(append_repr_items(out, list->items));
    text += value.is_list() ? "]" : list->items.size() == 1 ? ",)" : ")";
  } else if (value.is_dict()) {
    text += '{';
    bool first = true;
    for (const auto& [key, of_key] : value.as_dict().entries()) {
      if (!first) text += ", ";
      first = false;
      SEER_RETURN_IF_ERROR(append_repr(out, key));
      text += ": ";
      SEER_RETURN_IF_ERROR(append_repr(out, of_key));
    }
    text += '}';
  } else {
    SEER_RETURN_IF_ERROR(append_repr_object(out, value));
  }
  return out.within();
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, size_t bytes_max) : style_(style), out_(bytes_max) {}

  Status put(const JinjaValue& value) {
    SEER_RETURN_IF_ERROR(out_.within());
    std::string& text = out_.text();
    if (value.is_text()) {
      append_json_string(text, value.bytes(), style_.ensure_ascii);
    } else if (const auto list = value.as_list()) {
      SEER_RETURN_IF_ERROR(put_list(list->items));
    } else if (value.is_dict()) {
      SEER_RETURN_IF_ERROR(put_dict(value.as_dict()));
    } else {
      SEER_ASSIGN_OR_RETURN(const std::string plain, plain_text(value));
      text += plain;
    }
    return out_.within();
  }
  std::string take() { return std::move(out_.text()); }

 private:
  /// null, true, 7, 1.5: also how such a key is written, in quotes.
  static Result<std::string> plain_text(const JinjaValue& value) {
    if (value.is_none()) return std::string("null");
    if (value.is_bool()) return std::string(*value.integer() ? "true" : "false");
    if (value.is_int()) return to_text(*value.integer());
    if (value.is_float()) {
      if (std::isnan(value.as_float())) return std::string("NaN");
      if (std::isinf(value.as_float())) return std::string(value.as_float() < 0 ? "-Infinity" : "Infinity");
      return python_repr(value.as_float());
    }
    if (value.is_undefined() && value.undefined_name() != nullptr)
      return fail(Code::kInvalidArgument, "tojson cannot write '", *value.undefined_name(), "', which is undefined");
    return fail(Code::kInvalidArgument, "tojson cannot write a value of type ", value.type_name(),
                "; it takes dicts, lists, texts, numbers, true, false and none");
  }

  Status put_list(const std::vector<JinjaValue>& items) {
    if (items.empty()) {
      out_.text() += "[]";
      return {};
    }
    out_.text() += '[';
    ++level_;
    bool first = true;
    for (const JinjaValue& item : items) {
      begin_item(first);
      first = false;
      SEER_RETURN_IF_ERROR(put(item));
    }
    end_items();
    out_.text() += ']';
    return {};
  }

  Status put_dict(const JinjaDict& dict) {
    if (dict.size() == 0) {
      out_.text() += "{}";
      return {};
    }
    std::vector<const JinjaDict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) SEER_RETURN_IF_ERROR(sort_by_key(entries));
    out_.text() += '{';
    ++level_;
    bool first = true;
    for (const auto* entry : entries) {
      begin_item(first);
      first = false;
      if (entry->first.is_text()) {
        append_json_string(out_.text(), entry->first.bytes(), style_.ensure_ascii);
      } else {
        SEER_ASSIGN_OR_RETURN(const std::string key, plain_text(entry->first));
        out_.text() += cat('"', key, '"');
      }
      out_.text() += style_.key_separator;
      SEER_RETURN_IF_ERROR(put(entry->second));
    }
    end_items();
    out_.text() += '}';
    return {};
  }

  static Status sort_by_key(std::vector<const JinjaDict::Entry*>& entries) {
    Status problem;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
      const auto less = jinja_less(a->first, b->first);
      if (!less.ok()) problem = less.error();
      return less.ok() && *less;
    });
    return problem;
  }

  void begin_item(bool first) {
    if (!first) out_.text() += style_.item_separator;
    if (style_.indent) new_line();
  }
  void end_items() {
    --level_;
    if (style_.indent) new_line();
  }
  void new_line() {
    out_.text() += '\n';
    for (int i = 0; i < level_; ++i) out_.text() += *style_.indent;
  }

  const JsonStyle& style_;
  BoundedText out_;
  int level_ = 0;
};

using OrderedJson = nlohmann::ordered_json;

Result<JinjaValue> from_json(const OrderedJson& json, const std::string& path, int depth);

Result<std::string> checked_utf8(const std::string& text, const std::string& path) {
  const size_t valid = utf8_valid_bytes(text);
  if (valid == text.size()) return text;
  return fail(Code::kInvalidArgument, path, " is not valid UTF-8 (byte ", valid, " of ", text.size(), ")");
}

Result<JinjaValue> from_json(const OrderedJson& json, const std::string& path, int depth) {
  if (depth > kJinjaValueDepth)
    return fail(Code::kInvalidArgument, path, " is nested more than ", kJinjaValueDepth, " levels deep");
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return JinjaValue::of(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return JinjaValue::of(static_cast<Int128>(json.get<int64_t>()));
    case OrderedJson::value_t::number_unsigned:
      return JinjaValue::of(static_cast<Int128>(json.get<uint64_t>()));
    case OrderedJson::value_t::number_float:
      return JinjaValue::of(json.get<double>());
    case OrderedJson::value_t::string: {
      SEER_ASSIGN_OR_RETURN(std::string text, checked_utf8(json.get_ref<const std::string&>(), path));
      return JinjaValue::text(std::move(text));
    }
    case OrderedJson::value_t::array: {
      std::vector<JinjaValue> items;
      items.reserve(json.size());
      for (const auto& item : json) {
        SEER_ASSIGN_OR_RETURN(JinjaValue value, from_json(item, cat(path, '[', items.size(), ']'), depth + 1));
        items.push_back(std::move(value));
      }
      return JinjaValue::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      JinjaDict dict;
      for (const auto& [key, of_key] : json.items()) {
        SEER_ASSIGN_OR_RETURN(std::string key_text, checked_utf8(key, cat("a key of ", path)));
        SEER_ASSIGN_OR_RETURN(JinjaValue value, from_json(of_key, cat(path, '.', key), depth + 1));
        dict.set(JinjaValue::text(std::move(key_text)), std::move(value));
      }
      return JinjaValue::dict(std::move(dict));
    }
    default:
      return JinjaValue::none();  // null; binary values do not come from JSON text
  }
}

constexpr size_t kWeightMax = size_t{1} << 40;  // far more than any run may spend

std::shared_ptr<const JinjaList> made_list(std::vector<JinjaValue> items) {
  JinjaList list{std::move(items)};
  for (const JinjaValue& item : list.items) {
    list.depth = std::max(list.depth, item.depth() + 1);
    list.weight = std::min(list.weight + item.weight(), kWeightMax);
  }
  return std::make_shared<const JinjaList>(std::move(list));
}

bool equal_lists(const std::vector<JinjaValue>& a, const std::vector<JinjaValue>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), jinja_equal);
}

}  // namespace

JinjaValue JinjaValue::text(std::string bytes, bool safe) {
  const size_t chars = count_chars(bytes);
  return JinjaValue(std::make_shared<const JinjaText>(JinjaText{std::move(bytes), chars, safe}));
}

JinjaValue JinjaValue::list(std::vector<JinjaValue> items) { return JinjaValue(made_list(std::move(items))); }

JinjaValue JinjaValue::tuple(std::vector<JinjaValue> items) { return JinjaValue(Tuple{made_list(std::move(items))}); }

JinjaValue JinjaValue::dict(JinjaDict dict) { return JinjaValue(std::make_shared<const JinjaDict>(std::move(dict))); }

std::shared_ptr<const JinjaList> JinjaValue::as_list() const {
  if (is_list()) return std::get<std::shared_ptr<const JinjaList>>(data_);
  if (is_tuple()) return std::get<Tuple>(data_).list;
  return nullptr;
}

std::optional<Int128> JinjaValue::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  if (is_int()) return std::get<Int128>(data_);
  return std::nullopt;
}

std::optional<double> JinjaValue::number() const {
  if (is_float()) return as_float();
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

int JinjaValue::depth() const {
  if (const auto list = as_list()) return list->depth;
  if (is_dict()) return as_dict().depth();
  return is_object() ? as_object()->depth() : 0;
}

size_t JinjaValue::weight() const {
  if (is_text()) return 1 + bytes().size() / 64;
  if (const auto list = as_list()) return list->weight;
  return is_dict() ? as_dict().weight() : 1;
}

std::string JinjaValue::type_name() const {
  constexpr const char* kNames[] = {"Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict"};
  return is_object() ? as_object()->type_name() : kNames[data_.index()];
}

size_t JinjaDict::index_of(const JinjaValue& key) const {
  if (key.is_text() && entries_.size() >= kIndexed) {
    const auto found = by_text_.find(key.bytes());
    return found == by_text_.end() ? entries_.size() : found->second;
  }
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return jinja_equal(e.first, key); });
  return static_cast<size_t>(found - entries_.begin());
}

void JinjaDict::set(JinjaValue key, JinjaValue value) {
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  weight_ = std::min(weight_ + key.weight() + value.weight(), kWeightMax);
  const size_t index = index_of(key);
  if (index < entries_.size()) {
    entries_[index].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() < kIndexed) return;
  const size_t first = entries_.size() == kIndexed ? 0 : index;
  for (size_t i = first; i < entries_.size(); ++i)
    if (entries_[i].first.is_text()) by_text_.emplace(entries_[i].first.bytes(), i);
}

const JinjaValue* JinjaDict::find(const JinjaValue& key) const {
  const size_t index = index_of(key);
  return index < entries_.size() ? &entries_[index].second : nullptr;
}

const JinjaValue* JinjaDict::find(std::string_view key) const {
  if (entries_.size() >= kIndexed) {
    const auto found = by_text_.find(std::string(key));
    return found == by_text_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const auto& [known, value] : entries_)
    if (known.is_text() && known.bytes() == key) return &value;
  return nullptr;
}

Int128 JinjaRange::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

const JinjaValue* JinjaNamespace::find(std::string_view name) const {
  for (const auto& [known, value] : fields)
    if (known == name) return &value;
  return nullptr;
}

void JinjaNamespace::set(std::string_view name, JinjaValue value) {
  for (auto& [known, held] : fields) {
    if (known != name) continue;
    held = std::move(value);
    return;
  }
  fields.emplace_back(std::string(name), std::move(value));
}

bool jinja_true(const JinjaValue& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (value.is_text()) return !value.bytes().empty();
  if (const auto list = value.as_list()) return !list->items.empty();
  if (value.is_dict()) return value.as_dict().size() > 0;
  if (const auto* view = value.object_as<JinjaView>()) return !view->items->items.empty();
  if (const auto* range = value.object_as<JinjaRange>()) return range->size() > 0;
  return true;
}

bool jinja_hashable(const JinjaValue& value) {
  if (value.is_tuple()) {
    const auto items = value.as_list();
    return std::all_of(items->items.begin(), items->items.end(), jinja_hashable);
  }
  return !value.is_list() && !value.is_dict() && value.object_as<JinjaView>() == nullptr;
}

bool jinja_equal(const JinjaValue& a, const JinjaValue& b) {
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.is_text() && b.is_text()) return a.bytes() == b.bytes();
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple()))
    return equal_lists(a.as_list()->items, b.as_list()->items);
  if (a.is_dict() && b.is_dict()) {
    const JinjaDict& other = b.as_dict();
    const auto same = [&](const JinjaDict::Entry& entry) {
      const JinjaValue* found = other.find(entry.first);
      return found != nullptr && jinja_equal(entry.second, *found);
    };
    return a.as_dict().size() == other.size() &&
           std::all_of(a.as_dict().entries().begin(), a.as_dict().entries().end(), same);
  }
  if (a.is_object() && b.is_object()) {
    const auto* range = a.object_as<JinjaRange>();
    const auto* other = b.object_as<JinjaRange>();
    if (range == nullptr || other == nullptr) return a.as_object() == b.as_object();
    const Int128 size = range->size();
    if (size != other->size() || (size > 0 && range->start != other->start)) return false;
    return size < 2 || range->step == other->step;
  }
  return (a.is_undefined() && b.is_undefined()) || (a.is_none() && b.is_none());
}

Result<bool> jinja_less(const JinjaValue& a, const JinjaValue& b) {
  if (a.integer() && b.integer()) return *a.integer() < *b.integer();
  if (a.number() && b.number()) return *a.number() < *b.number();
  if (a.is_text() && b.is_text()) return a.bytes() < b.bytes();  // UTF-8 sorts as its code points do
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const auto& left = a.as_list()->items;
    const auto& right = b.as_list()->items;
    const auto [at, other] = std::mismatch(left.begin(), left.end(), right.begin(), right.end(), jinja_equal);
    if (at == left.end() || other == right.end()) return left.size() < right.size();
    return jinja_less(*at, *other);
  }
  return fail(Code::kInvalidArgument, "cannot order a value of type ", a.type_name(), " and one of type ",
              b.type_name());
}

Result<std::string> jinja_str(const JinjaValue& value, size_t bytes_max) {
  if (value.is_text()) return value.bytes();
  if (value.is_undefined()) return std::string();
  return jinja_repr(value, bytes_max);
}

Result<std::string> jinja_repr(const JinjaValue& value, size_t bytes_max) {
  BoundedText out(bytes_max);
  SEER_RETURN_IF_ERROR(append_repr(out, value));
  return std::move(out.text());
}

Result<std::string> jinja_json(const JinjaValue& value, const JsonStyle& style, size_t bytes_max) {
  JsonWriter writer(style, bytes_max);
  SEER_RETURN_IF_ERROR(writer.put(value));
  return writer.take();
}

Result<JinjaValue> jinja_from_json(const OrderedJson& json, const std::string& name) {
  return from_json(json, name, 0);
}

}  // namespace seer
