#include "cli/sampling_options.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace seer;

namespace {

Status set(SamplingParams& sampling, const std::string& name, const std::vector<std::string>& texts) {
  const std::vector<OptionSpec> options = sampling_options(sampling);
  const auto found = std::ranges::find(options, name, &OptionSpec::name);
  REQUIRE(found != options.end());
  return set_option(*found, texts);
}

}  // namespace

TEST_CASE("sampling options: each sets the field of its name") {
  SamplingParams s;
  CHECK(set(s, "max-tokens", {"9"}).ok());
  CHECK(set(s, "min-tokens", {"4"}).ok());
  CHECK(set(s, "temperature", {"0.5"}).ok());
  CHECK(set(s, "top-p", {"0.9"}).ok());
  CHECK(set(s, "top-k", {"7"}).ok());
  CHECK(set(s, "min-p", {"0.1"}).ok());
  CHECK(set(s, "repetition-penalty", {"1.1"}).ok());
  CHECK(set(s, "stop", {"a,b", "[c]"}).ok());
  CHECK(set(s, "stop-token-ids", {"1,2", "3"}).ok());
  CHECK(set(s, "ignore-eos", {"true"}).ok());
  CHECK(s == SamplingParams{.temperature = 0.5f,
                            .top_p = 0.9f,
                            .top_k = 7,
                            .min_p = 0.1f,
                            .repetition_penalty = 1.1f,
                            .max_tokens = 9,
                            .min_tokens = 4,
                            .stop_token_ids = {1, 2, 3},
                            .stop = {"a,b", "[c]"},
                            .ignore_eos = true});
  CHECK(sampling_options(s).size() == 10);  // a new one belongs above
}

TEST_CASE("sampling options: the ends of each range are taken, what lies beyond them is not") {
  const struct {
    const char* name;
    std::vector<const char*> taken, refused;
  } table[] = {
      {"max-tokens", {"1", "1000000000"}, {"0", "-1", "1.5"}},
      {"temperature", {"0", "100"}, {"-0.1", "100.1"}},
      {"top-p", {"1e-30", "1"}, {"0", "1.001"}},
      {"top-k", {"0", "2147483647"}, {"-1", "2147483648"}},
      {"min-p", {"0", "0.999"}, {"-0.1", "1"}},
      {"repetition-penalty", {"0.01", "100"}, {"0.009", "101"}},
      {"stop-token-ids", {"0", "2147483647"}, {"-1", "2147483648"}},
      {"stop", {" "}, {""}},
  };
  for (const auto& row : table) {
    SamplingParams s;
    for (const std::string text : row.taken) {
      CAPTURE(cat(row.name, " ", text));
      CHECK(set(s, row.name, {text}).ok());
    }
    for (const std::string text : row.refused) {
      CAPTURE(cat(row.name, " ", text));
      CHECK(!set(s, row.name, {text}).ok());
    }
  }
}

TEST_CASE("sampling options: the defaults are values that the options take") {
  SamplingParams s;
  for (const OptionSpec& spec : sampling_options(s)) {
    if (is_list(spec) || is_switch(spec)) continue;
    CAPTURE(spec.name);
    CHECK(set_option(spec, {default_text(spec)}).ok());
  }
  CHECK(s == SamplingParams{});
}

TEST_CASE("sampling options: fields of other programs lead to ours, unless their value asks for nothing") {
  const auto asks = [](const char* name) { return find_foreign_field(name); };
  REQUIRE(asks("do_sample") != nullptr);
  CHECK(asks("do_sample")->harmless == std::string("true"));
  CHECK(asks("max_new_tokens")->instead == std::string("use max_tokens"));
  CHECK(asks("mirostat") != nullptr);
  for (const char* name : {"mirostat_tau", "max_tokens", "temperature", "n", "stop", "seed", "messages", "user", "stream"}) CHECK(asks(name) == nullptr);
}
