// The global functions: range, dict, namespace, joiner, cycler, raise_exception, strftime_now. And how all functions
// bind their arguments.
#include <algorithm>
#include <array>

#include "gpu/text/jinja_loop.h"
#include "gpu/text/jinja_run.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Values = std::vector<const JinjaValue*>;

Error wrong_argument(std::string_view function, std::string_view parameter, const JinjaValue& met,
                     std::string_view expected) {
  return fail(Code::kInvalidArgument, function, "(): ", parameter, " is of type ", met.type_name(), "; expected ",
              expected);
}

struct Function : JinjaCallable {
  using Run = Result<JinjaValue> (*)(JinjaRun&, const JinjaArguments&);
  explicit Function(Run of) : function(of) {}
  Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) override { return function(run, arguments); }
  std::string type_name() const override { return "function"; }
  Run function;
};

Result<JinjaValue> range(JinjaRun&, const JinjaArguments& arguments) {
  constexpr int kItemsMax = 100'000;  // as in Jinja's sandbox
  const auto& given = arguments.positional;
  if (!arguments.named.empty() || given.empty() || given.size() > 3)
    return fail(Code::kInvalidArgument, "range() takes one to three numbers, but was given ",
                given.size() + arguments.named.size(), " arguments");
  std::array<Int128, 3> numbers{0, 0, 1};
  for (size_t i = 0; i < given.size(); ++i) {
    const auto whole = given[i].integer();
    if (!whole) return wrong_argument("range", "an argument", given[i], "an integer");
    numbers[given.size() == 1 ? 1 : i] = *whole;
  }
  for (const Int128 number : numbers)
    if (number != static_cast<int64_t>(number))
      return fail(Code::kInvalidArgument, "range(): ", to_text(number), " does not fit in 64 bits");
  if (numbers[2] == 0) return fail(Code::kInvalidArgument, "range(): the step is 0; expected another");
  auto made = std::make_shared<JinjaRange>();
  made->start = numbers[0];
  made->stop = numbers[1];
  made->step = numbers[2];
  if (made->size() > kItemsMax)
    return fail(Code::kFull, "range() of ", to_text(made->size()), " items; at most ", kItemsMax, " are allowed");
  return JinjaValue::object(std::move(made));
}

/// dict(): from a dict or from pairs, then named arguments.
Result<JinjaDict> dict_of(JinjaRun& run, std::string_view function, const JinjaArguments& arguments) {
  if (arguments.positional.size() > 1)
    return fail(Code::kInvalidArgument, function, "() takes one dict and named arguments");
  JinjaDict dict;
  if (!arguments.positional.empty()) {
    const JinjaValue& from = arguments.positional[0];
    if (from.is_dict()) {
      SEER_RETURN_IF_ERROR(run.spend(from.as_dict().size()));
      dict = from.as_dict();
    } else {
      SEER_ASSIGN_OR_RETURN(const JinjaItems pairs, run.items(from));
      for (const JinjaValue& pair : pairs->items) {
        SEER_ASSIGN_OR_RETURN(const JinjaItems both, run.items(pair));
        if (both->items.size() != 2)
          return fail(Code::kInvalidArgument, function, "(): an item has ", both->items.size(),
                      " parts; expected a key and a value");
        SEER_RETURN_IF_ERROR(run.usable_key(both->items[0], dict.size()));
        dict.set(both->items[0], both->items[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) dict.set(JinjaValue::text(key), value);
  return dict;
}

Result<JinjaValue> make_dict(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(JinjaDict dict, dict_of(run, "dict", arguments));
  return run.made_dict(std::move(dict));
}

Result<JinjaValue> make_namespace(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const JinjaDict dict, dict_of(run, "namespace", arguments));
  auto made = std::make_shared<JinjaNamespace>();
  for (const auto& [key, value] : dict.entries()) {
    if (!key.is_text()) return wrong_argument("namespace", "a name", key, "a text");
    made->fields.emplace_back(key.bytes(), value);
  }
  run.keep(made);
  return JinjaValue::object(std::move(made));
}

Result<JinjaValue> raise_exception(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("raise_exception", arguments, {"message"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string message, run.str(*given[0]));
  return fail(Code::kInvalidArgument, "the template refuses the conversation: ", message);
}

Result<JinjaValue> strftime_now(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("strftime_now", arguments, {"format"}, 1));
  if (!given[0]->is_text()) return wrong_argument("strftime_now", "format", *given[0], "a text");
  const std::string& pattern = given[0]->bytes();
  if (!run.now())
    return fail(Code::kInvalidArgument, "strftime_now() asks for the time, but the renderer was given none");
  if (pattern.empty()) return run.made_text("");
  std::array<char, 512> text;
  const std::tm now = *run.now();
  const size_t bytes = std::strftime(text.data(), text.size(), pattern.c_str(), &now);
  const std::string made(text.data(), bytes);
  if (bytes == 0 || utf8_valid_bytes(made) != bytes)
    return fail(Code::kInvalidArgument, "strftime_now(): cannot write the time as ", python_repr(pattern));
  return run.made_text(made);
}

struct Joiner : JinjaCallable {
  explicit Joiner(JinjaValue between) : separator(std::move(between)) {}
  Result<JinjaValue> call(JinjaRun&, const JinjaArguments&) override {
    return std::exchange(used, true) ? separator : JinjaValue::text("");
  }
  std::string type_name() const override { return "Joiner"; }
  int depth() const override { return separator.depth() + 1; }
  JinjaValue separator;
  bool used = false;
};

Result<JinjaValue> make_joiner(JinjaRun&, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("joiner", arguments, {"sep"}));
  return JinjaValue::object(std::make_shared<Joiner>(given[0] != nullptr ? *given[0] : JinjaValue::text(", ")));
}

Result<JinjaValue> make_cycler(JinjaRun& run, const JinjaArguments& arguments) {
  if (arguments.positional.empty()) return fail(Code::kInvalidArgument, "cycler() was given nothing to cycle through");
  SEER_ASSIGN_OR_RETURN(const JinjaValue items, run.made_list(arguments.positional));
  auto made = std::make_shared<JinjaCycler>();
  made->items = items.as_list();
  return JinjaValue::object(std::move(made));
}

}  // namespace

std::shared_ptr<JinjaCallable> find_jinja_function(std::string_view name) {
  struct Named {
    std::string_view name;
    Function::Run function;
  };
  constexpr Named kFunctions[] = {{"namespace", make_namespace},
                                  {"raise_exception", raise_exception},
                                  {"range", range},
                                  {"strftime_now", strftime_now},
                                  {"dict", make_dict},
                                  {"joiner", make_joiner},
                                  {"cycler", make_cycler}};
  for (const Named& known : kFunctions)
    if (known.name == name) return std::make_shared<Function>(known.function);
  return nullptr;
}

Result<Values> bind_arguments(std::string_view function, const JinjaArguments& given,
                              std::initializer_list<std::string_view> parameters, size_t required) {
  Values values(parameters.size(), nullptr);
  if (given.positional.size() > parameters.size())
    return fail(Code::kInvalidArgument, function, "() was given ", given.positional.size(),
                " arguments; expected at most ", parameters.size());
  for (size_t i = 0; i < given.positional.size(); ++i) values[i] = &given.positional[i];
  for (const auto& [key, value] : given.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), key);
    if (found == parameters.end())
      return fail(Code::kInvalidArgument, function, "() has no parameter named '", key, "'");
    const auto index = static_cast<size_t>(found - parameters.begin());
    if (values[index] != nullptr) return fail(Code::kInvalidArgument, function, "() was given '", key, "' twice");
    values[index] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (values[i] == nullptr)
      return fail(Code::kInvalidArgument, function, "() was not given '", parameters.begin()[i], "'");
  return values;
}

}  // namespace seer
