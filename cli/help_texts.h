// Texts of --help and of the manual page: the examples of each command, and notes on the policies.
// Used by config.cpp only. Pure.
#pragma once
#include <string>

namespace seer {

/// The policies of `seer rollout`, a line each.
std::string rollout_notes();
/// Likewise of `seer simulate`, and the parts of seer+ that --without names.
std::string simulate_notes();

inline constexpr const char* kRolloutExamples = R"(  seer rollout --model DIR --prompts prompts.jsonl --out responses.jsonl --report report.json
  seer rollout --config deploy/seer.toml --model DIR --prompts prompts.jsonl --out responses.jsonl --policy divided
  seer rollout --model DIR --prompts prompts.jsonl --compare verl,divided,seer --report compare.json
  seer rollout --model DIR --prompts prompts.jsonl --out greedy.jsonl --group-size 1 --temperature 0
  seer rollout --model DIR --prompts prompts.jsonl --out out.jsonl --dram-bytes 32MiB --cold-dir DIR
  seer rollout --print-config --group-size 16 > my.toml
)";
inline constexpr const char* kServeExamples = R"(  seer serve --model DIR                                                   # at 127.0.0.1:30000
  seer serve --model DIR --listen 0.0.0.0:30000 --tls-cert cert.pem --tls-key key.pem --token-file token.txt
  curl -s 127.0.0.1:30000/generate -d '{"text": "2+2=", "sampling_params": {"max_new_tokens": 8}}'
)";
inline constexpr const char* kNodeExamples = R"(  seer node --model DIR --listen 127.0.0.1:7000                          # the controller, with instances of its own
  seer node --model DIR --name 1 --join 127.0.0.1:7000                   # one more machine
  seer node --name 2 --join 127.0.0.1:7000 --roles kv --dram-bytes 64GiB # one that keeps KV for the others
  seer rollout --cluster 127.0.0.1:7000 --model DIR --prompts prompts.jsonl --out responses.jsonl
)";
inline constexpr const char* kStatusExamples = R"(  seer status --cluster 127.0.0.1:7000
  seer status --cluster 127.0.0.1:7000 --watch
)";
inline constexpr const char* kDrainExamples = R"(  seer drain --cluster 127.0.0.1:7000 --name 1      # returns when machine 1 has left
)";
inline constexpr const char* kScoreExamples = R"(  seer score --model DIR --in responses.jsonl --out scored.jsonl
  seer score --model REFERENCE_DIR --in responses.jsonl --out reference.jsonl --raw-logprobs
)";
inline constexpr const char* kProfileExamples = R"(  seer profile --model DIR --out profile.json
  seer profile --model DIR --out profile.json --instances 2 --quick --context-max 2048
)";
inline constexpr const char* kSimulateExamples = R"(  seer simulate --workload moonlight --policies verl,divided,seer --seeds 5 --html moonlight.html
  seer simulate --workload responses.jsonl --profile profile.json --instances 2 --kv-tokens 50000 --chunk-tokens 512
  seer simulate --workload moonlight --policies seer,divided --seeds 10 --faults
  seer simulate --policies seer+ --sweep instances=16,32 dram=1TiB,2TiB --train-s 650 --update-s 90 --html sweep.html
)";
inline constexpr const char* kCompletionExamples = R"(  source <(seer completion bash)                            # for this shell
  seer completion bash > ~/.local/share/bash-completion/completions/seer
  seer completion zsh > ~/.zfunc/_seer                      # with ~/.zfunc in fpath
  seer completion fish > ~/.config/fish/completions/seer.fish
)";
inline constexpr const char* kManExamples = R"(  seer man | man -l -
)";
inline constexpr const char* kDoctorExamples = R"(  seer doctor          # exit code 0 when `seer rollout` can run here
)";

}  // namespace seer
