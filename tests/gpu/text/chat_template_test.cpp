#include "gpu/text/chat_template.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "protocols/number_from_environment.h"

namespace seer {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::string& path) {
  std::ifstream in(path);
  REQUIRE_MESSAGE(in, "cannot read ", path);
  return Json::parse(in);
}

Json vectors() { return read_json(SEER_SOURCE_DIR "/tests/gpu/text/chat_template_vectors.json"); }

/// The time that the vectors were made for: Friday, 26 July 2024, 14:05:09.
std::tm vector_time() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 14;
  now.tm_min = 5;
  now.tm_sec = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

Result<std::string> render(const std::string& text, const Json& context = Json::object(),
                           const ChatTemplateLimits& limits = {}) {
  auto parsed = ChatTemplate::parse(text, "t.jinja", limits);
  if (!parsed.ok()) return parsed.error();
  return parsed->render(context, {.now = vector_time()});
}

std::string error_of(const std::string& text, const Json& context = Json::object(),
                     const ChatTemplateLimits& limits = {}) {
  const auto rendered = render(text, context, limits);
  CAPTURE(text);
  REQUIRE_FALSE(rendered.ok());
  return rendered.error().detail;
}

/// The context of a case: its own, the file's `values`, or a conversation with extra fields.
Json context_of(const Json& file, const Json& test) {
  if (!test.contains("conversation")) return test["context"] == "values" ? file["values"] : test["context"];
  Json context = {{"messages", file["conversations"][test["conversation"].get<std::string>()]}};
  context.update(file["extras"][test["extra"].get<size_t>()]);
  return context;
}

/// The template of a case: one of the file's by its name, or the text itself.
std::string template_of(const Json& file, const Json& test) {
  const std::string name = test["template"];
  return file["templates"].contains(name) ? file["templates"][name].get<std::string>() : name;
}

/// Runs every case of a file of vectors; returns how many differ from the reference.
int check_cases(const Json& file) {
  int different = 0;
  for (const Json& test : file["cases"]) {
    const Json context = context_of(file, test);
    const auto rendered = render(template_of(file, test), context);
    const bool same =
        test.contains("expected") ? rendered.ok() && *rendered == test["expected"].get<std::string>() : !rendered.ok();
    if (same) continue;
    if (!rendered.ok() && rendered.error().code == Code::kUnavailable) {
      MESSAGE("skipped: ", rendered.error().detail);
      continue;
    }
    ++different;
    if (different > 20) continue;
    const std::string got = rendered.ok() ? *rendered : rendered.error().detail;
    MESSAGE("template: ", test["template"].get<std::string>(), "\ncontext: ", context.dump(),
            "\nexpected: ", test.value("expected", "an error: " + test.value("error", "")), "\ngot: ", got);
  }
  return different;
}

TEST_CASE("chat template: renders what the reference renders, to the byte") {
  const Json file = vectors();
  REQUIRE(file["cases"].size() > 300);
  CHECK(check_cases(file) == 0);
}

TEST_CASE("chat template: cases of a file named in SEER_CHAT_TEMPLATE_CASES match the reference") {
  const char* path = std::getenv("SEER_CHAT_TEMPLATE_CASES");
  if (path == nullptr) return;  // made by make_chat_template_vectors.py --random
  const Json file = read_json(path);
  MESSAGE("cases: ", file["cases"].size());
  CHECK(check_cases(file) == 0);
}

TEST_CASE("chat template: a syntax error names the template, the line, what was found and what was expected") {
  CHECK(error_of("a\n{{ 1 + }}") == "chat template t.jinja, line 2: met '}}'; expected an expression");
  CHECK(error_of("{% if x %}\n\n") ==
        "chat template t.jinja, line 2: met the end of the template; expected {% elif %} or {% else %} or {% endif %} "
        "for the tag of line 1");
  CHECK(error_of("{% for x of y %}{% endfor %}") == "chat template t.jinja, line 1: met 'of'; expected 'in'");
  CHECK(error_of("\n{% include 'x' %}") ==
        "chat template t.jinja, line 2: the tag {% include %} is not supported in chat templates");
  CHECK(error_of("{{ x|nope }}") == "chat template t.jinja, line 1: there is no filter named 'nope'");
  CHECK(error_of("{{ (1, 2] }}") == "chat template t.jinja, line 1: met ']'; expected ')'");
  CHECK(error_of("{{ 'abc }}") == "chat template t.jinja, line 1: the string that begins here has no end; expected '");
  CHECK(error_of("{# abc") == "chat template t.jinja, line 1: the comment that begins here has no end; expected '#}'");
  CHECK(error_of("{% break %}") == "chat template t.jinja, line 1: met {% break %} outside of a for loop");
  CHECK(error_of("\xff") == "chat template t.jinja is not valid UTF-8 (byte 0 of 1)");
}

TEST_CASE("chat template: an error while rendering names the line of the innermost expression") {
  CHECK(error_of("\n{{ messages[0].content }}") ==
        "chat template t.jinja, line 2: 'messages' is undefined: it has no items");
  CHECK(error_of("{% macro m() %}\n{{ x.y }}{% endmacro %}\n\n{{ m() }}") ==
        "chat template t.jinja, line 2: 'x' is undefined: it has no attribute 'y'");
  CHECK(error_of("\n\n{{ raise_exception('roles must alternate') }}") ==
        "chat template t.jinja, line 3: the template refuses the conversation: roles must alternate");
  CHECK(error_of("{{ 1 + 'a' }}") == "chat template t.jinja, line 1: cannot apply + to values of type int and str");
  CHECK(error_of("{{ {}.nope() }}") ==
        "chat template t.jinja, line 1: there is no method .nope() here; check the type of what it is called on");
  CHECK(error_of("{{ x|tojson }}") == "chat template t.jinja, line 1: tojson cannot write 'x', which is undefined");
}

TEST_CASE("chat template: a template cannot change what it was given, nor reach inside values") {
  CHECK_FALSE(render("{{ x.append(1) }}", {{"x", Json::array()}}).ok());
  CHECK_FALSE(render("{{ x.update({}) }}", {{"x", Json::object()}}).ok());
  CHECK(*render("{{ ''.__class__ }}{{ x.__init__ }}", {{"x", 1}}) == "");
}

TEST_CASE("chat template: keys keep the order in which they came") {
  const Json context = Json::parse(R"({"tool": {"name": "f", "arguments": {"z": 1, "a": 2}}})");
  CHECK(*render("{{ tool|tojson }}", context) == R"({"name": "f", "arguments": {"z": 1, "a": 2}})");
}

TEST_CASE("chat template: a context that is not usable is refused with its place") {
  CHECK(error_of("a", Json::array()) == "chat template t.jinja: the context is of type array; expected an object");
  CHECK(error_of("a", {{"messages", {{{"content", "\xff"}}}}}) ==
        "the context.messages[0].content is not valid UTF-8 (byte 0 of 1)");
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  CHECK(error_of("a", {{"x", deep}}).ends_with("is nested more than 200 levels deep"));
}

TEST_CASE("chat template: without a time strftime_now fails, and all else renders") {
  const auto parsed = ChatTemplate::parse("{{ strftime_now('%d %b %Y') if ask else 'no' }}", "t");
  REQUIRE(parsed.ok());
  CHECK(*parsed->render(Json{{"ask", false}}) == "no");
  CHECK(parsed->render(Json{{"ask", true}}).error().detail ==
        "chat template t, line 1: strftime_now() asks for the time, but the renderer was given none");
  CHECK(*parsed->render(Json{{"ask", true}}, {.now = vector_time()}) == "26 Jul 2024");
}

// ---- limits
// ----------------------------------------------------------------------------------------------------------

TEST_CASE("chat template: a template that takes too many steps ends with an error") {
  const std::string loops = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  const auto endless = render(loops);
  REQUIRE_FALSE(endless.ok());
  CHECK(endless.error().code == Code::kFull);
  CHECK(endless.error().detail ==
        "chat template t.jinja, line 1: rendering takes more than 10000000 steps, which is the limit");
  const std::string compare =  // lists that hold each other twice: 2^60 items to compare
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, "
      "ns.b] %}{% endfor %}"
      "{{ ns.a == ns.b }}";
  CHECK(render(compare).error().code == Code::kFull);
  const std::string print =
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}{{ "
      "ns.a|tojson }}";
  CHECK(render(print).error().code == Code::kFull);
}

TEST_CASE("chat template: a text that grows too large ends with an error") {
  const ChatTemplateLimits small{.output_bytes_max = 1000};
  CHECK(error_of("{{ 'a' * 1001 }}", Json::object(), small) ==
        "chat template t.jinja, line 1: a str repeated 1001 times is larger than the 1000 bytes that are allowed");
  CHECK(error_of("{% for i in range(1001) %}a{% endfor %}", Json::object(), small) ==
        "chat template t.jinja, line 1: the output is longer than 1000 bytes, which is the limit");
  CHECK(render("{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")
            .error()
            .code == Code::kFull);
  CHECK(render("{{ range(10000000) }}").error().code == Code::kFull);
  CHECK(render("{{ 2 ** 200 }}").error().code == Code::kInvalidArgument);
  CHECK(error_of(std::string(2000, 'a'), Json::object(), {.template_bytes_max = 1000}) ==
        "chat template t.jinja has 2000 bytes; expected at most 1000");
}

TEST_CASE("chat template: nesting too deep ends with an error") {
  const auto repeated = [](const std::string& what, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += what;
    return text;
  };
  using Pair = std::pair<std::string, std::string>;
  for (const auto& [open, close] : {Pair{"(", ")"},
                                    {"[", "]"},
                                    {"{1:", "}"},
                                    {"not ", ""},
                                    {"-", ""},
                                    {"x(", ")"},
                                    {"x[", "]"},
                                    {"x if x else ", ""},
                                    {"x|default(", ")"}}) {
    CAPTURE(open);
    CHECK(error_of("{{ " + repeated(open, 10'000) + "1" + repeated(close, 10'000) + " }}").find("levels deep") !=
          std::string::npos);
  }
  CHECK(error_of(repeated("{% if x %}", 10'000)).find("levels deep") != std::string::npos);
  CHECK(error_of("{{ x" + repeated(".a", 10'000) + " }}").find("levels deep") != std::string::npos);
  CHECK(error_of("{{ 1" + repeated("+ 1", 10'000) + " }}").find("levels deep") != std::string::npos);
  CHECK(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("levels deep") != std::string::npos);
  const std::string nested =
      "{% set ns = namespace(a=[]) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% endfor %}";
  CHECK(error_of(nested).find("levels deep") != std::string::npos);
  // A chain of namespaces has no limit of its own, and is let go without recursion; circles are let go too.
  CHECK(
      render(
          "{% set ns = namespace(a=none) %}{% for i in range(100000) %}{% set ns.a = namespace(a=ns.a) %}{% endfor %}")
          .ok());
  CHECK(render("{% for x in [1] %}{% for y in [1] %}{% macro m() %}{% endmacro %}{% set o = [loop.changed(m)] %}{% "
               "endfor %}{% endfor %}")
            .ok());
  CHECK(render("{% for x in [1] %}{% set l = loop %}{% for y in [1] %}{% macro m() %}{% endmacro %}{% set o = "
               "l.changed(m) %}{% endfor %}{% endfor %}")
            .ok());
  CHECK(render("{% set ns = namespace() %}{% set ns.a = [ns] %}{% macro m() %}{% endmacro %}{% set ns.m = m %}{{ ns }}")
            .ok());
}

// ---- threads and random input
// ----------------------------------------------------------------------------------------

TEST_CASE("chat template: several threads render with one template at once") {
  const Json file = vectors();
  struct Case {
    ChatTemplate parsed;
    Json context;
    std::string expected;
  };
  std::vector<Case> work;
  for (const Json& test : file["cases"]) {
    if (!test.contains("expected") || !file["templates"].contains(test["template"].get<std::string>())) continue;
    work.push_back({*ChatTemplate::parse(template_of(file, test), "t"), context_of(file, test), test["expected"]});
  }
  REQUIRE(work.size() > 50);
  std::vector<int> different(4, 0);
  std::vector<std::thread> threads;
  for (int& wrong : different) {
    threads.emplace_back([&work, &wrong] {
      for (const Case& test : work) {
        const auto rendered = test.parsed.render(test.context, {.now = vector_time()});
        wrong += !rendered.ok() || *rendered != test.expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(different == std::vector<int>(4, 0));
}

TEST_CASE("chat template: any change to a template gives a text or an error of one line") {
  // SEER_CHAT_TEMPLATE_FUZZ: how many changed templates; SEER_CHAT_TEMPLATE_SEED: of which run.
  const auto count = static_cast<int>(number_from_environment("SEER_CHAT_TEMPLATE_FUZZ").value_or(3000));
  const auto seed = static_cast<unsigned>(number_from_environment("SEER_CHAT_TEMPLATE_SEED").value_or(1));
  CAPTURE(seed);
  const Json file = vectors();
  std::vector<std::pair<std::string, Json>> sources;
  for (const Json& test : file["cases"]) sources.emplace_back(template_of(file, test), context_of(file, test));
  const std::vector<std::string> pieces = {"{{",
                                           "}}",
                                           "{%",
                                           "%}",
                                           "{#",
                                           "#}",
                                           "-",
                                           "|",
                                           "(",
                                           ")",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           "'",
                                           "\"",
                                           "\\",
                                           ":",
                                           ",",
                                           ".",
                                           "for x in y",
                                           "endfor",
                                           "if ",
                                           "else",
                                           "endif",
                                           "set ",
                                           "macro m(a)",
                                           "endmacro",
                                           "not ",
                                           " is ",
                                           " in ",
                                           "~",
                                           "**",
                                           "//",
                                           "0",
                                           "-1",
                                           "99999999999999999999",
                                           "loop",
                                           "recursive",
                                           "\n",
                                           "é",
                                           "\xf0\x9f\x98\x80",
                                           "raw",
                                           "call"};
  std::mt19937 random(seed);
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size - 1)(random); };
  const ChatTemplateLimits limits{.output_bytes_max = 1 << 20, .steps_max = 200'000};
  int rendered_count = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    const auto& [original, context] = sources[pick(sources.size())];
    std::string text = original;
    for (size_t changes = 1 + pick(4); changes > 0 && !text.empty(); --changes) {
      const size_t at = pick(text.size());
      switch (pick(5)) {
        case 0:
          text.erase(at, 1 + pick(8));
          break;
        case 1:
          text.insert(at, pieces[pick(pieces.size())]);
          break;
        case 2:
          text.replace(at, 1 + pick(3), pieces[pick(pieces.size())]);
          break;
        case 3:
          text.insert(at, text.substr(pick(text.size()), 1 + pick(40)));
          break;
        default:
          text[at] = static_cast<char>(pick(256));
          break;
      }
    }
    CAPTURE(text);
    const auto rendered = render(text, context, limits);
    rendered_count += rendered.ok();
    refused += !rendered.ok();
    if (!rendered.ok()) {
      REQUIRE_FALSE(rendered.error().detail.empty());
    }
  }
  CHECK(rendered_count > count / 20);
  CHECK(refused > count / 20);
}

}  // namespace
}  // namespace seer
