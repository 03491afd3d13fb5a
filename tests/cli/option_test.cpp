#include "cli/option.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("sizes: every unit is read, with fractions, in any case") {
  const struct {
    const char* text;
    int64_t bytes;
  } table[] = {
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"4k", 4096},
      {"64M", 67108864},
      {"64m", 67108864},
      {"64 M", 67108864},
      {"1G", 1073741824},
      {"1.5g", 1610612736},
      {"2T", int64_t{2} << 40},
      {"1KiB", 1024},
      {"64MiB", 67108864},
      {"1.5GiB", 1610612736},
      {"2GB", 2000000000},
      {"2 tib", int64_t{2} << 40},
      {"0.5kb", 500},
      {"9007199254740993", 9007199254740993},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.text));
    REQUIRE(parse_size(row.text).ok());
    CHECK(*parse_size(row.text) == row.bytes);
  }
}

TEST_CASE("sizes: a text that is no size is in the error") {
  for (const char* text :
       {"", "x", "-1", "64Mi", "64  M", "1P", "1..5GiB", "1e3", "MiB", "10000000TiB", "4 096", "inf", "0x10"}) {
    CAPTURE(std::string(text));
    REQUIRE(!parse_size(text).ok());
    CHECK(parse_size(text).error().detail == cat("\"", text, "\" is not a size such as 4096, 64M, 1.5GiB or 2GB"));
  }
}

TEST_CASE("sizes: what format_size() prints reads back to the same bytes") {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{1025}, int64_t{3} << 20,
                              int64_t{5} << 30, (int64_t{1} << 53) + 1, int64_t{7} << 40})
    CHECK(*parse_size(format_size(bytes)) == bytes);
  CHECK(format_size(int64_t{256} << 20) == "256MiB");
  CHECK(format_size(1536) == "1536");
}

TEST_CASE("options: a value outside the range leaves the field as it was") {
  float share = 0.5f;
  const OptionSpec spec{"reserve", "SHARE", &share, "", above_to(0, 1)};
  for (const char* text : {"0", "-0.1", "1.001", "nan", "inf", "", "0.5x", "one"}) {
    CAPTURE(std::string(text));
    const Status set = set_option(spec, {text});
    REQUIRE(!set.ok());
    CHECK(set.error().detail == "a number, above 0 and at most 1");
    CHECK(share == 0.5f);
  }
  CHECK(set_option(spec, {"1"}).ok());
  CHECK(share == 1.0f);
}

TEST_CASE("options: a number that Seer can find may be auto, and is so in the file and in the help") {
  int64_t count = 3, bytes = 4096;
  const OptionSpec specs[] = {{"instances", "N", &count, "", between(1, 10), true}, {"kv-bytes", "SIZE", SizeField{&bytes}, "", at_least(1), true}};
  CHECK(toml_value(specs[0]) == "3");
  CHECK(toml_value(specs[1]) == "\"4KiB\"");
  for (const OptionSpec& spec : specs) {
    REQUIRE(set_option(spec, {"auto"}).ok());
    CHECK(toml_value(spec) == "\"auto\"");
    CHECK(default_text(spec) == "auto");
    CHECK(accepts(spec, ValueType::kText));
    CHECK(accepts(spec, ValueType::kInteger));
    CHECK_FALSE(set_option(spec, {"-1"}).ok());
    REQUIRE(set_option(spec, {"7"}).ok());
  }
  CHECK(count == 7);
  CHECK(bytes == 7);
  CHECK(expectation(specs[0]) == "auto, or an integer, at least 1 and at most 10");
  const OptionSpec plain{"limit", "N", &count, ""};
  CHECK_FALSE(set_option(plain, {"auto"}).ok());
  CHECK_FALSE(accepts(plain, ValueType::kText));
}

TEST_CASE("options: the ends of a range belong to it, also where a float has no such number") {
  float number = 1;
  const OptionSpec closed{"penalty", "R", &number, "", between(0.01, 0.3)}, open{"share", "P", &number, "", from_below(0, 0.1)};
  for (const char* text : {"0.01", "0.3"}) CHECK(set_option(closed, {text}).ok());
  for (const char* text : {"0.0099", "0.3001"}) CHECK(!set_option(closed, {text}).ok());
  CHECK(set_option(open, {"0.0999"}).ok());
  CHECK(!set_option(open, {"0.1"}).ok());
  CHECK(!set_option(open, {"0.1000000001"}).ok());
}

TEST_CASE("options: an integer takes no fraction, and no number too large for it") {
  int32_t top_k = 3;
  const OptionSpec spec{"top-k", "K", &top_k, "", between(0, 2147483647)};
  for (const char* text : {"1.0", "2147483648", "99999999999999999999", "1e3", " 1", "+1"})
    CHECK(!set_option(spec, {text}).ok());
  CHECK(top_k == 3);
  CHECK(set_option(spec, {"2147483647"}).ok());
}

TEST_CASE("options: a repeated text keeps its commas, a list of names is split at them") {
  std::vector<std::string> stop, compare;
  const OptionSpec repeated{"stop", "TEXT", RepeatedField{&stop}, ""};
  const OptionSpec names{"compare", "P,P", CommaListField{&compare}, "", OneOf{{"verl", "seer"}}};
  CHECK(set_option(repeated, {"a,b", "c"}).ok());
  CHECK(stop == std::vector<std::string>{"a,b", "c"});
  CHECK(set_option(names, {"seer,verl"}).ok());
  CHECK(compare == std::vector<std::string>{"seer", "verl"});
  CHECK(!set_option(names, {"seer,"}).ok());
  CHECK(!set_option(names, {"seer,other"}).ok());
  CHECK(!set_option(repeated, {""}).ok());
}

TEST_CASE("options: blanks after the commas of a list do not count, those inside a name do") {
  std::vector<std::string> compare;
  std::vector<int32_t> ids;
  const OptionSpec names{"compare", "P,P", CommaListField{&compare}, "", OneOf{{"verl", "seer"}}};
  const OptionSpec integers{"stop-token-ids", "ID,ID", &ids, ""};
  CHECK(set_option(names, {"verl, seer"}).ok());
  CHECK(compare == std::vector<std::string>{"verl", "seer"});
  CHECK(set_option(names, {" seer ,\tverl "}).ok());
  CHECK(compare == std::vector<std::string>{"seer", "verl"});
  CHECK(set_option(integers, {"4, 5", " 6"}).ok());
  CHECK(ids == std::vector<int32_t>{4, 5, 6});
  CHECK(!set_option(names, {"ve rl"}).ok());
  CHECK(!set_option(names, {"verl, "}).ok());
  CHECK(!set_option(integers, {"4 5"}).ok());
}

TEST_CASE("options: a mistyped name gets the nearest known one") {
  std::string policy;
  std::vector<std::string> compare;
  const OneOf known{{"verl", "divided", "seer", "seer+"}};
  const OptionSpec one{"policy", "P", &policy, "", known};
  const OptionSpec several{"compare", "P,P", CommaListField{&compare}, "", known};
  CHECK(set_option(one, {"sear"}).error().detail == "one of verl, divided, seer, seer+; did you mean seer?");
  CHECK(set_option(one, {"fifo"}).error().detail == "one of verl, divided, seer, seer+");
  CHECK(set_option(several, {"verl, dividd"}).error().detail ==
        "names out of verl, divided, seer, seer+; did you mean divided?");
}

TEST_CASE("options: integers beyond those of TOML are text there") {
  uint64_t seed = 0;
  const OptionSpec spec{"seed", "S", &seed, ""};
  CHECK(accepts(spec, ValueType::kText));
  for (const uint64_t edge : {uint64_t{0}, uint64_t{1} << 53, (uint64_t{1} << 63) - 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    seed = edge;
    const bool is_text = edge >= uint64_t{1} << 63;
    CHECK(toml_value(spec) == (is_text ? cat("\"", edge, "\"") : cat(edge)));
  }
}

TEST_CASE("options: TOML text is escaped, and a whole number option with a fraction shows it") {
  std::string text = "a\"b\\c\n";
  float number = 1;
  CHECK(toml_value({"x", "", &text, ""}) == R"("a\"b\\c\u000a")");
  CHECK(toml_value({"x", "", &number, ""}) == "1.0");
  number = 0.1f;
  CHECK(toml_value({"x", "", &number, ""}) == "0.1");
}
