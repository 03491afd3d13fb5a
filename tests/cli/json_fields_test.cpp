#include "cli/json_fields.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

using namespace seer;

TEST_CASE("json fields: decimals are written with all their digits, and stay decimals") {
  for (const char* const text : {"0.7", "1.05", "0.93", "-0.015", "1e-300", "0.1234567890123456789"})
    CHECK(Json::parse(written_value(Json::parse(text))).get<long double>() == Json::parse(text).get<long double>());
  CHECK(written_value(Json::parse("0.7")) == "0.7");
  CHECK(written_value(Json::parse("3.0")) == "3.0");
  CHECK(written_value(Json::parse("3")) == "3");
  CHECK(written_value(Json::parse("\"a\"")) == "\"a\"");
  CHECK(written_value(Json::parse("[1, 2.5, [\"a\"], []]")) == "[1,2.5,[\"a\"],[]]");
  CHECK(written_value(Json::parse("{\"a\": {\"b\\n\": [1.5, {}]}, \"c\": null}")) == "{\"a\":{\"b\\n\":[1.5,{}]},\"c\":null}");
}

TEST_CASE("json fields: deep nesting and objects of very many names are refused, brackets and commas in texts are not") {
  CHECK(check_shape(std::string(500, '[') + std::string(500, ']'), "").ok());
  CHECK(check_shape(std::string(501, '['), "x: ").error().detail == "x: lists and objects are nested deeper than 500");
  CHECK(check_shape("[\"" + std::string(501, '[') + "\\\"" + std::string(501, '{') + "\", {}, {}]", "").ok());
  const auto object = [](int names) {
    std::string text = "[{";
    for (int i = 0; i < names; ++i) text += "\"" + std::to_string(i) + ",,\":[1,2],";
    text.back() = '}';
    return text + "]";
  };
  CHECK(check_shape(object(1000), "").ok());
  CHECK(check_shape(object(1001), "").error().detail == "an object has more than 1000 names");
  std::string list = "[0";
  for (int i = 0; i < 5000; ++i) list += ",1";
  CHECK(check_shape(list + "]", "").ok());
}

TEST_CASE("json fields: the text of a field is read as JSON that takes little") {
  CHECK(field_value("{\"a\":1.5}", "").value().at("a") == 1.5L);
  CHECK(field_value("[1,", "x: ").error().detail == "x: [1, is not JSON");
  std::string names = "{\"0\":0";
  for (int i = 1; i <= 1000; ++i) names += ",\"" + std::to_string(i) + "\":0";
  CHECK(field_value(names + "}", "x: ").error().detail == "x: an object has more than 1000 names");
}

TEST_CASE("json fields: a value for a message is short") {
  CHECK(shown_value(Json::parse("0.25")) == "0.25");
  CHECK(shown_value(Json::parse("1e400")) == "beyond all bounds");
  CHECK(shown_value(Json::parse("[1,2,3]")) == "array");
}

TEST_CASE("json fields: integers are refused below their least, beyond their type and with a fraction") {
  CHECK(integer_field<uint64_t>(Json::parse("18446744073709551615"), "seed", 0, "").value() == std::numeric_limits<uint64_t>::max());
  CHECK(integer_field<int64_t>(Json::parse("-3"), "priority", -5, "").value() == -3);
  CHECK(integer_field<int64_t>(Json::parse("-6"), "priority", -5, "a:1: ").error().detail == "a:1: priority is -6: expected an integer of at least -5");
  CHECK(integer_field<uint64_t>(Json::parse("-1"), "seed", 0, "").error().detail == "seed is -1: expected an integer of at least 0");
  CHECK(!integer_field<int64_t>(Json::parse("9223372036854775808"), "n", 0, "").ok());
  CHECK(!integer_field<int64_t>(Json::parse("2.0"), "n", 0, "").ok());
  CHECK(integer_field<uint64_t>(Json::parse("-0"), "seed", 0, "").value() == 0);
  CHECK(integer_field<int32_t>(Json::parse("-4294967297"), "priority", -5, "").error().detail ==
        "priority is -4294967297: expected an integer of at least -5 and at most 2147483647");
  CHECK(!integer_field<uint32_t>(Json::parse("4294967296"), "groups", 1, "").ok());
}

TEST_CASE("json fields: a wrong token id is named by its place") {
  CHECK(token_ids(Json::parse("[0, 5, 2147483647]"), "input_ids", "").value().size() == 3);
  CHECK(token_ids(Json::parse("[0, -5]"), "input_ids", "").error().detail == "input_ids[1] is -5: expected a token id from 0 to 2147483647");
  CHECK(token_ids(Json::parse("7"), "input_ids", "").error().detail == "input_ids is number: expected a list of token ids");
}

TEST_CASE("json fields: a float that is written reads back to itself, through a double as well") {
  for (float value = 1e-6F; value < 1e6F; value *= 1.37F) {
    std::string text;
    append_float(text, -value);
    CHECK(std::stof(text) == -value);
    CHECK(static_cast<float>(std::stod(text)) == -value);
  }
  std::string text;
  append_float(text, std::nanf(""));
  CHECK(text == "null");
}
