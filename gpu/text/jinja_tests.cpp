// Jinja's tests: what may follow `is`, and what select() and similar filters look for.
#include "gpu/text/jinja_run.h"

namespace seer {
namespace {

using Values = std::vector<const JinjaValue*>;

template <bool (*kHolds)(const JinjaValue&)>
Result<bool> plain(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  if (arguments.positional.empty() && arguments.named.empty()) return kHolds(value);
  return fail(Code::kInvalidArgument, "the test takes no argument");
}

bool is_defined(const JinjaValue& value) { return !value.is_undefined(); }
bool is_undefined(const JinjaValue& value) { return value.is_undefined(); }
bool is_none(const JinjaValue& value) { return value.is_none(); }
bool is_boolean(const JinjaValue& value) { return value.is_bool(); }
bool is_true(const JinjaValue& value) { return value.is_bool() && jinja_true(value); }
bool is_false(const JinjaValue& value) { return value.is_bool() && !jinja_true(value); }
bool is_integer(const JinjaValue& value) { return value.is_int(); }
bool is_float(const JinjaValue& value) { return value.is_float(); }
bool is_number(const JinjaValue& value) { return value.number().has_value(); }
bool is_string(const JinjaValue& value) { return value.is_text(); }
bool is_mapping(const JinjaValue& value) { return value.is_dict(); }
bool is_escaped(const JinjaValue& value) { return value.is_text() && value.as_text().safe; }
bool is_callable(const JinjaValue& value) {
  return value.is_undefined() || value.object_as<JinjaCallable>() != nullptr;
}
bool is_sequence(const JinjaValue& value) {
  return value.is_undefined() || value.is_text() || value.as_list() != nullptr || value.is_dict() ||
         value.object_as<JinjaRange>() != nullptr;
}
bool is_iterable(const JinjaValue& value) {
  return is_sequence(value) || value.object_as<JinjaIterator>() != nullptr || value.object_as<JinjaView>() != nullptr;
}
bool is_filter(const JinjaValue& value) { return value.is_text() && find_jinja_filter(value.bytes()) != nullptr; }
bool is_test(const JinjaValue& value) { return value.is_text() && find_jinja_test(value.bytes()) != nullptr; }

template <bool (*kHolds)(std::string_view)>
Result<bool> of_text(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the test", arguments, {}));
  SEER_ASSIGN_OR_RETURN(const std::string text, run.str(value));
  SEER_RETURN_IF_ERROR(case_known(text));
  return kHolds(text);
}

Result<bool> remainder_is(JinjaRun& run, const JinjaValue& value, const JinjaValue& divisor, int expected) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue rest, run.binary("%", value, divisor));
  return jinja_equal(rest, JinjaValue::of(Int128{expected}));
}
template <int kRest>
Result<bool> parity(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the test", arguments, {}));
  return remainder_is(run, value, JinjaValue::of(Int128{2}), kRest);
}
Result<bool> divisible_by(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("divisibleby", arguments, {"num"}, 1));
  return remainder_is(run, value, *args[0], 0);
}

enum class Op { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn };
template <Op kOp>
Result<bool> compared(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  constexpr const char* kSigns[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
  constexpr const char* kSign = kSigns[static_cast<int>(kOp)];
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    return fail(Code::kInvalidArgument, "the test ", kSign, " takes one argument, but was given ",
                arguments.positional.size() + arguments.named.size());
  return run.compare(kSign, value, arguments.positional[0]);
}

Result<bool> same_as(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("sameas", arguments, {"other"}, 1));
  if (value.data().index() != args[0]->data().index() || value.is_undefined()) return false;
  if (value.is_object()) return value.as_object() == args[0]->as_object();
  if (value.as_list() != nullptr) return value.as_list() == args[0]->as_list();
  if (value.is_dict()) return &value.as_dict() == &args[0]->as_dict();
  return jinja_equal(value, *args[0]);
}

struct NamedTest {
  std::string_view name;
  JinjaTest test;
};
constexpr NamedTest kTests[] = {
    {"!=", compared<Op::kNotEqual>},
    {"<", compared<Op::kLess>},
    {"<=", compared<Op::kLessEqual>},
    {"==", compared<Op::kEqual>},
    {">", compared<Op::kGreater>},
    {">=", compared<Op::kGreaterEqual>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", compared<Op::kEqual>},
    {"equalto", compared<Op::kEqual>},
    {"escaped", plain<is_escaped>},
    {"even", parity<0>},
    {"false", plain<is_false>},
    {"filter", plain<is_filter>},
    {"float", plain<is_float>},
    {"ge", compared<Op::kGreaterEqual>},
    {"greaterthan", compared<Op::kGreater>},
    {"gt", compared<Op::kGreater>},
    {"in", compared<Op::kIn>},
    {"integer", plain<is_integer>},
    {"iterable", plain<is_iterable>},
    {"le", compared<Op::kLessEqual>},
    {"lessthan", compared<Op::kLess>},
    {"lower", of_text<python_is_lower>},
    {"lt", compared<Op::kLess>},
    {"mapping", plain<is_mapping>},
    {"ne", compared<Op::kNotEqual>},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", parity<1>},
    {"sameas", same_as},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_string>},
    {"test", plain<is_test>},
    {"true", plain<is_true>},
    {"undefined", plain<is_undefined>},
    {"upper", of_text<python_is_upper>},
};

}  // namespace

JinjaTest find_jinja_test(std::string_view name) {
  for (const NamedTest& known : kTests)
    if (known.name == name) return known.test;
  return nullptr;
}

}  // namespace seer
