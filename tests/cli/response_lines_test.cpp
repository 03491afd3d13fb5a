#include "cli/response_lines.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <vector>

using namespace seer;

TEST_CASE("response lines: a response with what its prompt line brought; text only with a tokenizer") {
  const auto tokenizer = load_tokenizer(SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8").value();
  const std::vector<int32_t> prompt_ids = tokenizer->encode("1+2=").value();
  Response r;
  r.request = {.group = GroupId{7}, .sample = 3};
  r.seed = 11;
  r.output.ids = tokenizer->encode("3").value();
  r.output.logprobs.assign(r.output.ids.size(), -0.5f);
  r.finish = FinishReason::kStop;
  r.version = WeightVersion{4};
  r.chunks = 3;
  r.migrations = 2;
  r.preemptions = 1;
  r.queue_us = 1'500'000;
  r.run_us = 250'000;
  const LineOfPrompt prompt{.id = R"("sum")", .prompt_ids = prompt_ids, .carried = R"("answer":3)"};

  auto line = nlohmann::json::parse(response_line_of(r, prompt, tokenizer.get()));
  CHECK(line["id"] == "sum");
  CHECK(line["answer"] == 3);
  CHECK(line["seed"] == 11);
  CHECK(line["prompt_ids"] == prompt_ids);
  CHECK(line["output_ids"] == r.output.ids);
  CHECK(line["logprobs"] == std::vector<double>(r.output.ids.size(), -0.5));
  CHECK(line["text"] == "3");
  CHECK(line["finish_reason"] == "stop");
  CHECK(line["weight_version"] == 4);
  CHECK(line["chunks"] == 3);
  CHECK(line["migrations"] == 2);
  CHECK(line["preemptions"] == 1);
  CHECK(line["queue_s"] == 1.5);
  CHECK(line["run_s"] == 0.25);

  auto bare = nlohmann::json::parse(response_line_of(r, prompt, nullptr));
  CHECK_FALSE(bare.contains("text"));
  line.erase("text");
  CHECK(bare == line);
  bare["weight_version_name"] = "step-4";
  CHECK(nlohmann::json::parse(response_line_of(r, prompt, nullptr, "step-4")) == bare);
}
