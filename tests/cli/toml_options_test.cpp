#include "cli/toml_options.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

namespace {

struct Fields {
  std::string model = "m", policy = "seer";
  int64_t groups = 8, bytes = 1;
  uint64_t seed = 1;
  double share = 0;
  bool pin = false;
  std::vector<std::string> stop, compare;
  std::vector<int32_t> ids;

  TomlTable table() {
    return {.name = "run",
            .options = {{"Work",
                         {{"model", "DIR", &model, ""},
                          {"policy", "P", &policy, "", OneOf{{"verl", "seer"}}},
                          {"group-size", "N", &groups, "", between(1, 99)}}},
                        {"More",
                         {{"kv-bytes", "SIZE", SizeField{&bytes}, ""},
                          {"seed", "S", &seed, ""},
                          {"share", "X", &share, "", at_least(0)},
                          {"pin", "", &pin, ""},
                          {"stop", "TEXT", RepeatedField{&stop}, ""},
                          {"compare", "P,P", CommaListField{&compare}, "", OneOf{{"verl", "seer"}}},
                          {"ids", "ID", &ids, ""}}}},
            .keys = "the name of an option"};
  }
};

std::string error_of(const std::string& text) {
  Fields fields;
  const Status applied = apply_toml_text(text, "c.toml", fields.table());
  REQUIRE(!applied.ok());
  CHECK(applied.error().code == Code::kInvalidArgument);
  return applied.error().detail;
}

}  // namespace

TEST_CASE("toml options: the options that a file names are set, the others stay as they are") {
  const ScratchFolder folder;
  const std::string file = folder.write("c.toml",
                                        "# a comment\n[run]\nmodel = \"a \\\"b\\\"\"\nkv-bytes = \"4KiB\"\nshare = 2\npin = true\n"
                                        "seed = \"18446744073709551615\"\nstop = [\"x,y\", \"z\"]\ncompare = [\"verl\", \"seer\"]\nids = [3, 4]\n");
  Fields fields;
  const Status applied = apply_toml_file(file, fields.table());
  REQUIRE_MESSAGE(applied.ok(), applied.error().detail);
  CHECK(fields.model == "a \"b\"");
  CHECK(fields.bytes == 4096);
  CHECK(fields.share == 2);
  CHECK(fields.pin);
  CHECK(fields.seed == ~uint64_t{0});
  CHECK(fields.stop == std::vector<std::string>{"x,y", "z"});
  CHECK(fields.compare == std::vector<std::string>{"verl", "seer"});
  CHECK(fields.ids == std::vector<int32_t>{3, 4});
  CHECK(fields.policy == "seer");
  CHECK(fields.groups == 8);
}

TEST_CASE("toml options: a number keeps all its digits") {
  Fields fields;
  REQUIRE(apply_toml_text("[run]\nshare = 0.3333333333333333\nkv-bytes = 9007199254740993\n", "c.toml", fields.table()).ok());
  CHECK(fields.share == 0.3333333333333333);
  CHECK(fields.bytes == 9007199254740993);
}

TEST_CASE("toml options: each bad line gets file, line, key, value and what was expected") {
  const struct {
    const char* text;
    const char* error;
  } table[] = {
      {"[run]\n\ngroup-size = \"8\"\n", "c.toml:3: group-size = '8': expected an integer, at least 1 and at most 99"},
      {"[run]\ngroup-size = 0\n", "c.toml:2: group-size = 0: expected an integer, at least 1 and at most 99"},
      {"[run]\ngroup-size = 8.0\n", "c.toml:2: group-size = 8.0: expected an integer, at least 1 and at most 99"},
      {"[run]\nmodel = 3\n", "c.toml:2: model = 3: expected text"},
      {"[run]\nmodel = {a = 1}\n", "c.toml:2: model = {...}: expected text"},
      {"[run]\npin = 1\n", "c.toml:2: pin = 1: expected true or false"},
      {"[run]\nstop = \"x\"\n", "c.toml:2: stop = 'x': expected a list of texts, none empty"},
      {"[run]\nstop = [\"x\", 3]\n", "c.toml:2: stop = [ 'x', 3 ]: expected a list of texts, none empty"},
      {"[run]\nmodel = [\"x\"]\n", "c.toml:2: model = [ 'x' ]: expected text"},
      {"[run]\nshare = inf\n", "c.toml:2: share = inf: expected a number, at least 0"},
      {"[run]\nseed = 1979-05-27\n", "c.toml:2: seed = 1979-05-27: expected an integer from 0 to 18446744073709551615"},
      {"[run]\npolicy = \"sear\"\n", "c.toml:2: policy = 'sear': expected one of verl, seer; did you mean seer?"},
      {"[run]\ngroup_size = 8\n", "c.toml:2: unknown key \"group_size\": expected the name of an option; did you mean group-size?"},
      {"[run]\nx = 8\n", "c.toml:2: unknown key \"x\": expected the name of an option"},
      {"[rum]\n", "c.toml:1: unknown key \"rum\": expected the table [run]"},
      {"x = 1\n[run]\n", "c.toml:1: unknown key \"x\": expected the table [run]"},
      {"run = 1\n", "c.toml:1: unknown key \"run\": expected the table [run]"},
      {"", "c.toml: expected the table [run]"},
      {"[run]\na = 1\na = 2\n", "c.toml:3: not TOML: cannot redefine existing integer 'a'"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.text));
    CHECK(error_of(row.text) == row.error);
  }
}

TEST_CASE("toml options: a file that cannot be read is not found, and a folder is told from a file") {
  Fields fields;
  const Status none = apply_toml_file("/no/such.toml", fields.table()), folder = apply_toml_file("/", fields.table());
  REQUIRE(!none.ok());
  REQUIRE(!folder.ok());
  CHECK(none.error().code == Code::kNotFound);
  CHECK(none.error().detail == "cannot read /no/such.toml: No such file or directory");
  CHECK(folder.error().detail == "cannot read /: Is a directory");
}
