#include "cli/run_warnings.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

/// Prompts that ask for 100 tokens, and whose groups may write so many.
RolloutWork work_of(int64_t context_tokens_max, const std::vector<int64_t>& max_tokens) {
  RolloutWork work;
  auto model = std::make_shared<Model>();
  model->config.context_tokens_max = context_tokens_max;
  work.config = model->config;
  for (const int64_t tokens : max_tokens) {
    work.lines.emplace_back().sampling.max_tokens = 100;
    work.groups.emplace_back().sampling.max_tokens = tokens;
  }
  return work;
}

}  // namespace

TEST_CASE("warnings of a rollout: one for all prompts whose max tokens the context cuts") {
  RolloutOptions options;
  CHECK(run_warnings(options, work_of(200, {100, 100}), 2).empty());
  RolloutWork work = work_of(90, {87, 100, 87});
  CHECK(run_warnings(options, work, 2) ==
        std::vector<std::string>{"the max tokens of 2 of 3 prompts are cut to what the model's context of 90 tokens leaves "
                                 "after the prompt"});
  work.lines[0].sampling.max_tokens = 87;  // as it asks
  work.lines[1].sampling.max_tokens = 101;
  CHECK(run_warnings(options, work, 2).at(0).starts_with("the max tokens of 2 of 3 prompts"));
}

TEST_CASE("warnings of a rollout: a million requests take memory that a user should know of") {
  RolloutWork work = work_of(200, {100, 100});
  work.groups[0].samples = 900'000;
  work.groups[1].samples = 99'999;
  CHECK(run_warnings({}, work, 2).empty());
  work.groups[1].samples = 2'100'000;
  CHECK(run_warnings({}, work, 2) ==
        std::vector<std::string>{"3000000 requests: their bookkeeping takes about 2.8 GiB of memory"});
}

TEST_CASE("warnings of a rollout: more instances than cores") {
  RolloutOptions options;
  options.instances = 3;
  CHECK(run_warnings(options, work_of(9, {}), 3).empty());
  CHECK(run_warnings(options, work_of(9, {}), 0).empty());
  CHECK(run_warnings(options, work_of(9, {}), 2) ==
        std::vector<std::string>{"3 instances on 2 cores: the instances wait for each other"});
}
