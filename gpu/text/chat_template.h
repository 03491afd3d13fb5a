// ChatTemplate: a model's own chat template: turns the messages of a conversation into the text that the model was
// trained on. Used by the chat endpoint of the HTTP server. Templates are Jinja, found in tokenizer_config.json
// ("chat_template") or chat_template.jinja, and written for Hugging Face transformers: what it renders, this renders to
// the byte, with the same settings (sandboxed and immutable, trim_blocks, lstrip_blocks, loop controls, generation
// blocks, raise_exception, strftime_now, tojson without HTML escapes).
//
// Invariants:
//  (1) thread-safe: nothing changes after parse();
//  (2) a template cannot reach anything but the context: no files, no environment; the time only if it is given;
//  (3) time and memory of a rendering are bounded by ChatTemplateLimits, whatever the template and the context say.
//
// The context that transformers passes, and a caller should: messages, tools and documents (null if there are none),
// add_generation_prompt, bos_token and eos_token as texts, and whatever the request names in chat_template_kwargs
// (enable_thinking...).
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

struct ChatTemplateLimits {
  size_t template_bytes_max = size_t{1} << 20;
  size_t output_bytes_max = size_t{64} << 20;  // also of any intermediate text
  int64_t steps_max = 10'000'000;              // a step: an evaluated expression, loop turn, item made, 16 bytes of text made
  int depth_max = 600;                         // tags, expressions and macros inside each other while rendering
};

struct RenderOptions {
  std::optional<std::tm> now;  // what strftime_now() writes; none: a template that asks for it fails
};

struct JinjaTemplate;

class ChatTemplate {
 public:
  /// `name` names the template in errors, usually its path. Every error is one sentence that begins with it and the line.
  static Result<ChatTemplate> parse(std::string_view text, std::string name, const ChatTemplateLimits& limits = {});

  /// The text of the conversation. The context is an object; the order of its keys is the order in which the template
  /// sees them, so it matters (tool definitions are written as they came).
  /// Fails with kInvalidArgument if the template refuses the conversation or does not fit it, with kFull at a limit.
  Result<std::string> render(const nlohmann::ordered_json& context, const RenderOptions& options = {}) const;
  /// nlohmann::json sorts keys: it would change what the model reads.
  template <class SortedJson>
  Result<std::string> render(const SortedJson&, const RenderOptions& = {}) const = delete;

 private:
  explicit ChatTemplate(std::shared_ptr<const JinjaTemplate> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const JinjaTemplate> parsed_;
};

}  // namespace seer
