// JinjaValue: a value in a chat template while it renders, as a Python value is in Jinja on Python.
// Used by the renderer of chat templates, its filters and methods; not part of ChatTemplate's interface.
//
// Invariants:
//  (1) every text is valid UTF-8; its length in characters is known;
//  (2) texts, lists and dicts never change after they were made (Jinja's sandbox forbids it too), so they may be shared;
//  (3) containers nest at most kJinjaValueDepth deep, so that walking or freeing one cannot use up the stack.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/text/python_text.h"
#include "protocols/result.h"

namespace seer {

inline constexpr int kJinjaValueDepth = 200;

struct JinjaText {
  std::string bytes;
  size_t chars = 0;
  bool safe = false;  // marked by the filter `safe` or `escape`: text added to it with + is escaped for HTML

  bool is_ascii() const { return chars == bytes.size(); }
};

class JinjaValue;
struct JinjaList;
class JinjaDict;
struct JinjaObject;

class JinjaValue {
 public:
  struct Undefined {
    const std::string* name;  // its name in the template, if known; lives in the template
  };
  struct None {};
  struct Tuple {
    std::shared_ptr<const JinjaList> list;
  };
  using Data = std::variant<Undefined, None, bool, Int128, double, std::shared_ptr<const JinjaText>,
                            std::shared_ptr<const JinjaList>, Tuple, std::shared_ptr<const JinjaDict>,
                            std::shared_ptr<JinjaObject>>;

  JinjaValue() : data_(Undefined{nullptr}) {}
  static JinjaValue undefined(const std::string* name) { return JinjaValue(Undefined{name}); }
  static JinjaValue none() { return JinjaValue(None{}); }
  static JinjaValue of(bool value) { return JinjaValue(Data(std::in_place_type<bool>, value)); }
  static JinjaValue of(Int128 value) { return JinjaValue(Data(std::in_place_type<Int128>, value)); }
  static JinjaValue of(double value) { return JinjaValue(Data(std::in_place_type<double>, value)); }
  static JinjaValue count(size_t value) { return of(static_cast<Int128>(value)); }
  static JinjaValue text(std::string bytes, bool safe = false);
  static JinjaValue list(std::vector<JinjaValue> items);
  static JinjaValue tuple(std::vector<JinjaValue> items);
  static JinjaValue dict(JinjaDict dict);
  static JinjaValue object(std::shared_ptr<JinjaObject> object) { return JinjaValue(std::move(object)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<Int128>(data_); }  // not a bool
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const JinjaText>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const JinjaList>>(data_); }
  bool is_tuple() const { return std::holds_alternative<Tuple>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const JinjaDict>>(data_); }
  bool is_object() const { return std::holds_alternative<std::shared_ptr<JinjaObject>>(data_); }

  // REQUIRES: the value is of that kind.
  const JinjaText& as_text() const { return *std::get<std::shared_ptr<const JinjaText>>(data_); }
  const std::string& bytes() const { return as_text().bytes; }
  const JinjaDict& as_dict() const { return *std::get<std::shared_ptr<const JinjaDict>>(data_); }
  const std::shared_ptr<JinjaObject>& as_object() const { return std::get<std::shared_ptr<JinjaObject>>(data_); }
  double as_float() const { return std::get<double>(data_); }
  const std::string* undefined_name() const { return std::get<Undefined>(data_).name; }
  /// The items of a list or tuple; null for every other kind.
  std::shared_ptr<const JinjaList> as_list() const;

  /// A bool or integer as an integer, as Python takes them in arithmetic.
  std::optional<Int128> integer() const;
  /// A bool, integer or float as a float.
  std::optional<double> number() const;
  /// The object as a T; null if the value is not one.
  template <class T>
  T* object_as() const {
    return is_object() ? dynamic_cast<T*>(as_object().get()) : nullptr;
  }

  const Data& data() const { return data_; }
  int depth() const;  // 0: holds no other value
  /// How much work it is to compare or hash this, in steps. A list that holds another one twice counts it twice.
  size_t weight() const;
  /// What Python calls the type: "str", "int", "NoneType".
  std::string type_name() const;

 private:
  explicit JinjaValue(Data data) : data_(std::move(data)) {}
  Data data_;
};

struct JinjaList {
  std::vector<JinjaValue> items;
  int depth = 1;
  size_t weight = 1;
};
using JinjaItems = std::shared_ptr<const JinjaList>;

/// Keys in the order of insertion, as in Python.
class JinjaDict {
 public:
  using Entry = std::pair<JinjaValue, JinjaValue>;

  /// Puts a value under a key; a key already there keeps its place. REQUIRES: key is hashable (jinja_hashable).
  void set(JinjaValue key, JinjaValue value);
  const JinjaValue* find(const JinjaValue& key) const;
  const JinjaValue* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  size_t weight() const { return weight_; }

 private:
  size_t index_of(const JinjaValue& key) const;  // size(): none

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_text_;  // in use from kIndexed entries on
  int depth_ = 1;
  size_t weight_ = 1;
};

/// Everything else: functions, loops, namespaces, ranges, iterators.
struct JinjaObject {
  virtual ~JinjaObject() = default;
  virtual std::string type_name() const = 0;
  virtual int depth() const { return 1; }
};

/// The result of selectattr() and map(): items to read once. It has no length and is always true.
struct JinjaIterator : JinjaObject {
  JinjaItems items;
  size_t next = 0;
  std::optional<Error> failure;  // reported after the last item
  std::string type = "generator";
  std::string type_name() const override { return type; }
  int depth() const override { return items->depth + 1; }
};

/// The result of dict.keys(), values() and items(): items with a length, but without positions.
struct JinjaView : JinjaObject {
  JinjaItems items;
  std::string type;  // "dict_keys"
  std::string type_name() const override { return type; }
  int depth() const override { return items->depth + 1; }
};

struct JinjaRange : JinjaObject {
  Int128 start = 0, stop = 0, step = 1;
  Int128 size() const;
  Int128 at(Int128 index) const { return start + index * step; }
  std::string type_name() const override { return "range"; }
};

/// namespace(): the only thing whose fields a template can change.
struct JinjaNamespace : JinjaObject {
  std::vector<std::pair<std::string, JinjaValue>> fields;
  const JinjaValue* find(std::string_view name) const;
  void set(std::string_view name, JinjaValue value);
  std::string type_name() const override { return "Namespace"; }
};

bool jinja_true(const JinjaValue& value);
/// A key of a dict: no list, no dict, no tuple with one inside.
bool jinja_hashable(const JinjaValue& value);
bool jinja_equal(const JinjaValue& a, const JinjaValue& b);
/// a < b. An error if Python raises TypeError.
Result<bool> jinja_less(const JinjaValue& a, const JinjaValue& b);

/// str() and repr(). Fails only if the text would be longer than bytes_max.
Result<std::string> jinja_str(const JinjaValue& value, size_t bytes_max);
Result<std::string> jinja_repr(const JinjaValue& value, size_t bytes_max);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // none: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
/// json.dumps().
Result<std::string> jinja_json(const JinjaValue& value, const JsonStyle& style, size_t bytes_max);

/// The value of a JSON document. `name` names it in errors.
Result<JinjaValue> jinja_from_json(const nlohmann::ordered_json& json, const std::string& name);

}  // namespace seer
