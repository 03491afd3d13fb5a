// Operators, attributes, items and slices of values: Python's rules, within the limits of Jinja's sandbox.
#include <algorithm>
#include <cmath>

#include "gpu/text/jinja_loop.h"
#include "gpu/text/jinja_run.h"

namespace seer {
namespace {

Error out_of_range() { return fail(Code::kInvalidArgument, "a number leaves the range of 128 bits"); }

Error wrong_operands(std::string_view op, const JinjaValue& left, const JinjaValue& right) {
  if (left.is_undefined()) return undefined_error(left, cat("it cannot be the left of ", op));
  if (right.is_undefined()) return undefined_error(right, cat("it cannot be the right of ", op));
  return fail(Code::kInvalidArgument, "cannot apply ", op, " to values of type ", left.type_name(), " and ",
              right.type_name());
}

/// Python rounds // and % down, C++ towards zero.
Int128 floor_divide(Int128 a, Int128 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

Result<Int128> integer_power(Int128 base, Int128 exponent) {
  Int128 result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) return out_of_range();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return out_of_range();
  }
  return result;
}

Result<JinjaValue> whole_arithmetic(const std::string& op, Int128 a, Int128 b) {
  Int128 result = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &result)) return JinjaValue::of(result);
  if (op == "-" && !__builtin_sub_overflow(a, b, &result)) return JinjaValue::of(result);
  if (op == "*" && !__builtin_mul_overflow(a, b, &result)) return JinjaValue::of(result);
  if (op == "+" || op == "-" || op == "*") return out_of_range();
  if (op == "**") {
    if (b < 0) return JinjaValue::of(std::pow(static_cast<double>(a), static_cast<double>(b)));
    SEER_ASSIGN_OR_RETURN(result, integer_power(a, b));
    return JinjaValue::of(result);
  }
  if (b == 0) return fail(Code::kInvalidArgument, "division of ", to_text(a), " by zero");
  if (op == "/") return JinjaValue::of(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1)
    return op == "//" ? whole_arithmetic("-", 0, a) : JinjaValue::of(Int128{0});  // avoids the overflow of a / b
  if (op == "//") return JinjaValue::of(floor_divide(a, b));
  return JinjaValue::of(a - floor_divide(a, b) * b);
}

Result<JinjaValue> float_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return JinjaValue::of(a + b);
  if (op == "-") return JinjaValue::of(a - b);
  if (op == "*") return JinjaValue::of(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) return fail(Code::kInvalidArgument, "zero to a negative power");
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b))
      return fail(Code::kInvalidArgument, "the power is not a real number");
    if (std::isinf(power) && !std::isinf(a) && !std::isinf(b))
      return fail(Code::kInvalidArgument, "the power is too large");
    return JinjaValue::of(power);
  }
  if (b == 0) return fail(Code::kInvalidArgument, "division of ", python_repr(a), " by zero");
  if (op == "/") return JinjaValue::of(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == "%") return JinjaValue::of(rest);
  const double whole = (a - rest) / b;
  double floor = std::floor(whole);
  if (whole - floor > 0.5) floor += 1;
  return JinjaValue::of(whole == 0 ? std::copysign(0.0, a / b) : floor);
}

Result<JinjaValue> repeated(JinjaRun& run, const JinjaValue& what, Int128 times) {
  times = std::max<Int128>(times, 0);
  SEER_ASSIGN_OR_RETURN(const size_t size, run.length(what));
  const size_t bytes_each = what.is_text() ? what.bytes().size() : size * sizeof(JinjaValue);
  if (bytes_each > 0 && times > static_cast<Int128>(run.bytes_max() / bytes_each))
    return fail(Code::kFull, "a ", what.type_name(), " repeated ", to_text(times), " times is larger than the ",
                run.bytes_max(), " bytes that are allowed");
  if (what.is_text()) {
    std::string text;
    for (Int128 i = 0; i < times && bytes_each > 0; ++i) text += what.bytes();
    return run.made_text(std::move(text), what.as_text().safe);
  }
  SEER_RETURN_IF_ERROR(run.spend(size * static_cast<size_t>(size > 0 ? times : 0)));
  const JinjaItems list = what.as_list();
  std::vector<JinjaValue> items;
  for (Int128 i = 0; i < times && size > 0; ++i) items.insert(items.end(), list->items.begin(), list->items.end());
  return what.is_list() ? run.made_list(std::move(items)) : run.made_tuple(std::move(items));
}

Result<JinjaValue> joined(JinjaRun& run, const JinjaValue& left, const JinjaValue& right) {
  if (left.is_text()) {
    const bool safe = left.as_text().safe || right.as_text().safe;
    const auto part = [&](const JinjaValue& of) {
      return safe && !of.as_text().safe ? html_escaped(of.bytes()) : of.bytes();
    };
    if (left.bytes().size() + right.bytes().size() > run.bytes_max())
      return run.made_text(std::string(run.bytes_max() + 1, ' '));
    return run.made_text(part(left) + part(right), safe);
  }
  std::vector<JinjaValue> items = left.as_list()->items;
  items.insert(items.end(), right.as_list()->items.begin(), right.as_list()->items.end());
  return left.is_list() ? run.made_list(std::move(items)) : run.made_tuple(std::move(items));
}

/// The index as Python takes it: a negative one counts from the end. None: out of range.
std::optional<size_t> position(Int128 index, size_t size) {
  if (index < 0) index += static_cast<Int128>(size);
  if (index < 0 || index >= static_cast<Int128>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

bool is_dunder(std::string_view name) { return name.size() > 4 && name.starts_with("__") && name.ends_with("__"); }

/// Methods that would change a value, which the sandbox hides.
bool changes_value(const JinjaValue& value, std::string_view name) {
  if (value.is_dict())
    return name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" || name == "update";
  return false;  // those of lists are not offered at all
}

/// What getattr() finds: a method or a field; undefined if there is none.
JinjaValue python_attribute(const JinjaValue& value, const std::string& name) {
  if (value.is_object()) {
    if (const auto* space = value.object_as<JinjaNamespace>()) {
      const JinjaValue* found = space->find(name);
      return found != nullptr ? *found : JinjaValue();
    }
    if (const auto* loop = value.object_as<JinjaLoop>()) return loop->field(value.as_object(), name);
    if (const auto* cycler = value.object_as<JinjaCycler>()) return cycler->field(value.as_object(), name);
    const auto* macro = value.object_as<JinjaMacro>();
    return macro != nullptr && name == "name" ? JinjaValue::text(macro->statement.text) : JinjaValue();
  }
  auto method = find_jinja_method(value, name);
  return method != nullptr ? JinjaValue::object(std::move(method)) : JinjaValue();
}

}  // namespace

Error undefined_error(const JinjaValue& value, std::string_view doing) {
  const std::string* name = value.undefined_name();
  return fail(Code::kInvalidArgument, name != nullptr ? cat("'", *name, "'") : std::string("a value"),
              " is undefined: ", doing);
}

Status JinjaRun::usable_key(const JinjaValue& key, size_t keys) {
  SEER_RETURN_IF_ERROR(spend(key.weight() + (key.is_text() ? 0 : keys)));
  if (jinja_hashable(key)) return {};
  return fail(Code::kInvalidArgument, "a ", key.type_name(), " cannot be the key of a dict");
}

Result<bool> JinjaRun::equal(const JinjaValue& a, const JinjaValue& b) {
  SEER_RETURN_IF_ERROR(spend(std::min(a.weight(), b.weight())));
  return jinja_equal(a, b);
}

Result<bool> JinjaRun::less(const JinjaValue& a, const JinjaValue& b) {
  SEER_RETURN_IF_ERROR(spend(std::min(a.weight(), b.weight())));
  if (a.is_undefined() || b.is_undefined()) return wrong_operands("<", a, b);
  return jinja_less(a, b);
}

Result<bool> JinjaRun::compare(std::string_view op, const JinjaValue& left, const JinjaValue& right) {
  if (op == "==") return equal(left, right);
  if (op == "in") return contains(right, left);
  if (op == "!=" || op == "not in") {
    SEER_ASSIGN_OR_RETURN(const bool holds, op == "!=" ? equal(left, right) : contains(right, left));
    return !holds;
  }
  if (left.is_undefined() || right.is_undefined()) return wrong_operands(op, left, right);
  const auto is_nan = [](const JinjaValue& value) { return value.is_float() && std::isnan(value.as_float()); };
  if ((is_nan(left) && right.number()) || (is_nan(right) && left.number())) return false;
  if (op == "<") return less(left, right);
  if (op == ">") return less(right, left);
  SEER_ASSIGN_OR_RETURN(const bool not_holds, op == "<=" ? less(right, left) : less(left, right));
  return !not_holds;
}

Result<bool> JinjaRun::contains(const JinjaValue& container, const JinjaValue& item) {
  if (container.is_text()) {
    if (!item.is_text())
      return fail(Code::kInvalidArgument, "'in' looks for a value of type ", item.type_name(),
                  " in a text; expected a text");
    SEER_RETURN_IF_ERROR(spend(container.weight()));
    return container.bytes().find(item.bytes()) != std::string::npos;
  }
  if (container.is_dict()) {
    SEER_RETURN_IF_ERROR(usable_key(item, container.as_dict().size()));
    return container.as_dict().find(item) != nullptr;
  }
  if (auto* iterator = container.object_as<JinjaIterator>()) {
    const auto& all = iterator->items->items;
    while (iterator->next < all.size()) {
      SEER_ASSIGN_OR_RETURN(const bool found, equal(all[iterator->next++], item));
      if (found) return true;
    }
    if (iterator->failure) return *iterator->failure;
    return false;
  }
  SEER_ASSIGN_OR_RETURN(const JinjaItems all, items(container));
  for (const JinjaValue& one : all->items) {
    SEER_ASSIGN_OR_RETURN(const bool found, equal(one, item));
    if (found) return true;
  }
  return false;
}

Result<JinjaValue> JinjaRun::binary(const std::string& op, const JinjaValue& left, const JinjaValue& right) {
  if (left.integer() && right.integer()) return whole_arithmetic(op, *left.integer(), *right.integer());
  if (left.number() && right.number()) return float_arithmetic(op, *left.number(), *right.number());
  if (op == "%" && left.is_text()) {
    if (left.as_text().safe) return fail(Code::kInvalidArgument, "% is not supported on a text marked safe");
    SEER_ASSIGN_OR_RETURN(std::string text, percent_format(*this, left.bytes(), right));
    return made_text(std::move(text));
  }
  const bool same_kind = (left.is_text() && right.is_text()) || (left.is_list() && right.is_list()) ||
                         (left.is_tuple() && right.is_tuple());
  if (op == "+" && same_kind) return joined(*this, left, right);
  const auto is_sequence = [](const JinjaValue& value) {
    return value.is_text() || value.is_list() || value.is_tuple();
  };
  if (op == "*" && is_sequence(left) && right.integer()) return repeated(*this, left, *right.integer());
  if (op == "*" && is_sequence(right) && left.integer()) return repeated(*this, right, *left.integer());
  return wrong_operands(op, left, right);
}

Result<JinjaValue> JinjaRun::attribute(const JinjaValue& value, const std::string& name) {
  if (value.is_undefined()) return undefined_error(value, cat("it has no attribute '", name, "'"));
  JinjaValue found = python_attribute(value, name);
  if (!found.is_undefined()) return found;
  if (value.is_dict() && !is_dunder(name) && !changes_value(value, name)) {
    if (const JinjaValue* of_key = value.as_dict().find(name)) return *of_key;
  }
  return JinjaValue::undefined(&name);
}

Result<JinjaValue> JinjaRun::item(const JinjaValue& value, const JinjaValue& key) {
  if (value.is_undefined()) return undefined_error(value, "it has no items");
  if (value.is_dict()) {
    SEER_RETURN_IF_ERROR(spend(key.weight() + (key.is_text() ? 0 : value.as_dict().size())));
    const JinjaValue* found = jinja_hashable(key) ? value.as_dict().find(key) : nullptr;
    if (found != nullptr) return *found;
  } else if (const auto index = key.integer()) {
    const auto* range = value.object_as<JinjaRange>();
    if (!value.is_text() && value.as_list() == nullptr && range == nullptr) return JinjaValue();
    SEER_ASSIGN_OR_RETURN(const size_t size, length(value));
    const auto at = position(*index, size);
    if (!at) return JinjaValue();
    if (range != nullptr) return JinjaValue::of(range->at(static_cast<Int128>(*at)));
    if (!value.is_text()) return value.as_list()->items[*at];
    return slice_text(*this, value.as_text(), {.start = static_cast<Int128>(*at), .step = 1, .count = 1});
  }
  if (!key.is_text()) return JinjaValue();
  return python_attribute(value, key.bytes());  // d['items'] without such a key is the method, as in Jinja
}

// ---- slices

JinjaSlice JinjaSlice::of(std::optional<Int128> start, std::optional<Int128> stop, std::optional<Int128> step,
                          size_t size) {
  const Int128 length = static_cast<Int128>(size);
  const Int128 by = step.value_or(1);
  const Int128 lowest = by < 0 ? -1 : 0;
  const Int128 highest = by < 0 ? length - 1 : length;
  const auto bound = [&](Int128 index) {
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, lowest, highest);
  };
  const Int128 first = start ? bound(*start) : by < 0 ? highest : lowest;
  const Int128 last = stop ? bound(*stop) : by < 0 ? lowest : highest;
  const Int128 stride = by < 0 ? (by < -length - 1 ? length + 1 : -by) : by;
  const Int128 distance = by < 0 ? first - last : last - first;
  const Int128 count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  return {.start = first, .step = by < 0 ? -stride : std::min(stride, length + 1), .count = static_cast<size_t>(count)};
}

Result<JinjaValue> slice_text(JinjaRun& run, const JinjaText& text, const JinjaSlice& slice) {
  if (text.is_ascii() && slice.step == 1)
    return run.made_text(text.bytes.substr(static_cast<size_t>(slice.start), slice.count), text.safe);
  SEER_RETURN_IF_ERROR(run.spend(text.bytes.size() / 16));
  std::string out;
  if (slice.step == 1) {
    const size_t begin = byte_of_char(text.bytes, static_cast<size_t>(slice.start));
    const std::string_view rest = std::string_view(text.bytes).substr(begin);
    out = rest.substr(0, byte_of_char(rest, slice.count));
  } else {
    SEER_RETURN_IF_ERROR(run.spend(text.chars / 4));
    const auto chars = split_chars(text.bytes);
    for (size_t i = 0; i < slice.count; ++i) out += chars[slice.at(i)];
  }
  return run.made_text(std::move(out), text.safe);
}

JinjaValue slice_range(const JinjaRange& range, const JinjaSlice& slice) {
  auto part = std::make_shared<JinjaRange>();
  part->start = range.at(slice.start);
  part->step = range.step * slice.step;
  part->stop = part->start + part->step * static_cast<Int128>(slice.count);
  return JinjaValue::object(std::move(part));
}

}  // namespace seer
