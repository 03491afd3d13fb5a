#include "cli/arguments.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A program of three commands, and the fields of its options.
struct SmallProgram {
  std::string policy = "seer", model;
  uint64_t seed = 1;
  Words stop;
  bool pin = false, help = false;
  int64_t bytes = 4096, threads = 0;

  CommandSpec run{
      "run",
      "runs",
      "  seer run --seed 3\n",
      {{"Options", {{kHelpOption, "", &help, "print this help, and stop"}}},
       {"Work",
        {{"model", "DIR", &model, "a folder"},
         {"policy", "P", &policy, "which next", OneOf{{"verl", "seer"}}},
         {"seed", "S", &seed, "the same gives the same"},
         {"stop", "TEXT", RepeatedField{&stop}, "ends a response"},
         {"pin", "", &pin, "pins threads"},
         {"kv-bytes", "SIZE", SizeField{&bytes}, "KV cache"}}}}};
  CommandSpec score{"score",
                    "scores",
                    "",
                    {{"Options", {{kHelpOption, "", &help, "print this help, and stop"}}},
                     {"Engine", {{"threads", "N", &threads, "of the engine"}}},
                     {"Work", {{"model", "DIR", &model, "a folder"}}}}};
  CommandSpec helper{kHelpCommand, "lists", "", {}, "COMMAND", {"run", "score", kHelpCommand}};

  ProgramSpec spec() const { return {.version = "seer 1", .what = "rolls", .commands = {run, score, helper}}; }
};

std::string error_of(const Words& arguments) {
  const auto read = read_arguments(SmallProgram().spec(), arguments);
  REQUIRE(!read.ok());
  CHECK(read.error().code == Code::kInvalidArgument);
  return read.error().detail;
}

PrintAndExit printed(const Words& arguments) {
  const auto read = read_arguments(SmallProgram().spec(), arguments);
  REQUIRE_MESSAGE(read.ok(), read.error().detail);
  return std::get<PrintAndExit>(*read);
}

/// Reads `seer run` with these flags and moves them to the fields of `program`.
Status apply(const SmallProgram& program, Words flags) {
  flags.insert(flags.begin(), "run");
  const auto read = read_arguments(program.spec(), flags);
  REQUIRE_MESSAGE(read.ok(), read.error().detail);
  return apply_typed(program.run, std::get<TypedCommand>(*read));
}

}  // namespace

TEST_CASE("arguments: a command has the values that were typed, and no option that was not") {
  const auto read = read_arguments(SmallProgram().spec(), {"run", "--stop", "a,b", "--seed=7", "--pin", "--stop", "--c"});
  REQUIRE_MESSAGE(read.ok(), read.error().detail);
  const TypedCommand& typed = std::get<TypedCommand>(*read);
  CHECK(typed.name == "run");
  CHECK(typed.word == "");
  CHECK(typed.values == std::map<std::string, Words>{{"pin", {"true"}}, {"seed", {"7"}}, {"stop", {"a,b", "--c"}}});
}

TEST_CASE("arguments: an unexpected word is named, with the nearest known name or where all are listed") {
  const struct {
    Words arguments;
    const char* error;
  } table[] = {
      {{"run", "--bogus", "1"}, "unknown option --bogus; seer run --help lists its options"},
      {{"run", "--max-num-seqs", "1"}, "unknown option --max-num-seqs; seer run --help lists its options"},  // it has no --max-batch
      {{"run", "--polcy", "seer"}, "unknown option --polcy; did you mean --policy?"},
      {{"run", "--polcy=seer"}, "unknown option --polcy; did you mean --policy?"},
      {{"run", "-policy", "seer"}, "unknown option -policy; did you mean --policy?"},
      {{"run", "--kv_bytes", "3"}, "unknown option --kv_bytes; did you mean --kv-bytes?"},
      {{"run", "--pol", "1"}, "unknown option --pol; did you mean --policy?"},
      {{"run", "--threads", "2"}, "--threads is not an option of seer run; it belongs to seer score"},
      {{"--versoin"}, "unknown option --versoin; did you mean --version?"},
      {{"--bogus"}, "unknown option --bogus; seer --help lists the commands"},
      {{"--model", "m", "run"}, "--model belongs after its command: seer run --model"},
      {{"--model", "m"}, "--model belongs after its command: seer run, seer score"},
      {{"--threads", "2"}, "--threads belongs after its command: seer score"},
      {{"scroe"}, "unknown command scroe; did you mean score?"},
      {{"train"}, "unknown command train; the commands are run, score, help"},
      {{"help", "scores"}, "unknown command scores; did you mean score?"},
      {{"run", "more"}, "unexpected word more after seer run: it takes only options; a value with spaces needs quotes"},
      {{"run", "score"}, "unexpected word score after seer run: it takes only options; a value with spaces needs quotes"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.error));
    CHECK(error_of(row.arguments) == row.error);
  }
}

TEST_CASE("arguments: an option without its value says what it expects, whatever comes after it") {
  const struct {
    Words flags;
    const char* error;
  } table[] = {
      {{"--model"}, "--model has no value: expected text"},
      {{"--seed="}, "--seed has no value: expected an integer from 0 to 18446744073709551615"},
      {{"--model", "--seed", "3"}, "--model has no value: expected text"},
      {{"--policy", "--model=m", "x"}, "--policy has no value: expected one of verl, seer"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.error));
    Words arguments = row.flags;
    arguments.insert(arguments.begin(), "run");
    CHECK(error_of(arguments) == row.error);
  }
}

TEST_CASE("arguments: help and version are printed by flag and by command, and seer alone prints help as an error") {
  const PrintAndExit help = printed({"--help"});
  CHECK(help.exit_code == 0);
  for (const char* part : {"Seer: rolls", "  run  ", "runs", "score", "`seer COMMAND --help`"}) {
    CAPTURE(std::string(part));
    CHECK(contains(help.text, part));
  }
  CHECK(printed({"-h"}).text == help.text);
  CHECK(printed({"help"}).text == help.text);
  CHECK(printed({}).text == help.text);
  CHECK(printed({}).exit_code == 2);
  CHECK(printed({"--version"}).text == "seer 1\n");
  CHECK(printed({"-V"}).text == "seer 1\n");
  const std::string of_run = printed({"run", "--help"}).text;
  CHECK(printed({"run", "-h"}).text == of_run);
  CHECK(printed({"help", "run"}).text == of_run);
  CHECK(contains(of_run, "Examples:\n  seer run --seed 3\n"));
  CHECK(contains(of_run, "which next: one of verl, seer [seer]"));
  CHECK(contains(of_run, kSizeUnits));
  CHECK(!contains(printed({"score", "--help"}).text, kSizeUnits));  // it has no sizes
}

TEST_CASE("arguments: typed values reach the fields of their options, and the others keep theirs") {
  SmallProgram program;
  const Status applied = apply(program, {"--policy", "verl", "--stop", "a", "--stop", "b", "--pin", "--pin", "--kv-bytes", "1M"});
  REQUIRE_MESSAGE(applied.ok(), applied.error().detail);
  CHECK(program.policy == "verl");
  CHECK(program.stop == Words{"a", "b"});
  CHECK(program.pin);
  CHECK(program.bytes == 1 << 20);
  CHECK(program.seed == 1);
  CHECK(apply(program, {"--pin=false"}).ok());
  CHECK(!program.pin);
}

TEST_CASE("arguments: a value that an option does not take is shown as it was typed, with what was expected") {
  const struct {
    Words flags;
    const char* error;
  } table[] = {
      {{"--seed", "-1"}, "--seed -1: expected an integer from 0 to 18446744073709551615"},
      {{"--seed", "1", "--seed", "2"}, "--seed is given 2 times; give it once"},
      {{"--pin=maybe"}, "--pin=maybe: expected true or false"},
      {{"--pin", "--pin=false"}, "--pin is given 2 times; give it once"},
      {{"--policy", "sear"}, "--policy sear: expected one of verl, seer; did you mean seer?"},
      {{"--kv-bytes", "1Q"}, "--kv-bytes 1Q: expected a size such as 4096, 64M, 1.5GiB or 2GB"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.error));
    const SmallProgram program;
    const Status applied = apply(program, row.flags);
    REQUIRE(!applied.ok());
    CHECK(applied.error().detail == row.error);
    CHECK(applied.error().code == Code::kInvalidArgument);
  }
}
