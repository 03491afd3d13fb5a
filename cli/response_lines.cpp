#include "cli/response_lines.h"

#include <optional>

namespace seer {

std::string response_line_of(const Response& r, const LineOfPrompt& prompt, const Tokenizer* tokenizer, std::string_view version_name) {
  std::optional<std::string> text;
  if (tokenizer != nullptr) text = tokenizer->decode(r.output.ids, {.skip_special = true});
  return response_line({.request = r.request,
                        .id = prompt.id,
                        .seed = r.seed,
                        .prompt_ids = prompt.prompt_ids,
                        .output_ids = r.output.ids,
                        .logprobs = r.output.logprobs,
                        .kept_ids = r.output.kept_ids.tokens() > 0 ? &r.output.kept_ids : nullptr,
                        .text = text,
                        .finish_reason = r.finish,
                        .error = r.error,
                        .weight_version = r.version,
                        .weight_version_name = version_name,
                        .chunks = r.chunks,
                        .migrations = r.migrations,
                        .preemptions = r.preemptions,
                        .queue_s = static_cast<double>(r.queue_us) / 1e6,
                        .run_s = static_cast<double>(r.run_us) / 1e6,
                        .carried = prompt.carried});
}

}  // namespace seer
