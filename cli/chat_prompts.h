// ChatPrompts: turns conversations into prompts with the chat template of a model folder (chat_template.jinja, else "chat_template"
// in tokenizer_config.json), as Hugging Face's apply_chat_template() does. Immutable.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/json_fields.h"
#include "cli/jsonl.h"
#include "gpu/text/chat_template.h"
#include "gpu/text/tokenizer.h"
#include "protocols/result.h"

namespace seer {

class ChatPrompts {
 public:
  /// Errors: kNotFound if the folder has no chat template, kInvalidArgument if it cannot be read.
  static Result<std::shared_ptr<const ChatPrompts>> load(const std::filesystem::path& folder, std::shared_ptr<const Tokenizer> tokenizer);
  /// The prompt for an object with `messages` and optionally `tools`, `documents`, `add_generation_prompt` (default true) and
  /// `chat_template_kwargs`. Errors: one sentence that begins with `found`: "prompts.jsonl:7: ".
  Result<std::vector<int32_t>> prompt(const Json& fields, const std::string& found) const;

 private:
  std::map<std::string, ChatTemplate> templates_;    // by name: "default", "tool_use"
  std::map<std::string, std::string> special_texts_;  // bos_token, eos_token and others of tokenizer_config.json
  std::shared_ptr<const Tokenizer> tokenizer_;
};

/// What a model's folder makes prompts with. Null: it has no such thing.
struct PromptMakers {
  std::string model;  // for messages
  const Tokenizer* tokenizer = nullptr;
  const ChatPrompts* chat = nullptr;
};
/// The tokens of a line's prompt, whichever way it gives one. `found` begins an error.
Result<std::vector<int32_t>> prompt_ids_of(const PromptLine& line, const PromptMakers& makers, const std::string& found);

}  // namespace seer
