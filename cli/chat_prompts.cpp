#include "cli/chat_prompts.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

#include "gpu/text/tokenizer_config.h"

namespace seer {
namespace {

using Context = nlohmann::ordered_json;

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Code::kNotFound, "cannot read ", path.string(), ": ", std::strerror(errno));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The text of bos_token and the like, which is a string or an object with "content". Empty if it is neither.
std::string special_text(const Context& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) return value["content"].get<std::string>();
  return "";
}

/// As templates read it. A long double holds 18 digits of what was written, which are rounded to a double once, as Python does.
Context context_of(const Json& value) {
  if (value.is_number_float()) {
    std::array<char, 64> digits;
    std::snprintf(digits.data(), digits.size(), "%.18Lg", value.get<long double>());
    return std::strtod(digits.data(), nullptr);
  }
  if (value.is_object()) {
    Context object = Context::object();
    for (const auto& [name, field] : value.items()) object[name] = context_of(field);
    return object;
  }
  if (value.is_array()) {
    Context list = Context::array();
    for (const Json& item : value) list.push_back(context_of(item));
    return list;
  }
  return Context(value);
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

/// Templates take the content of a message as text. A list of parts becomes their texts, a line each, as vLLM does
/// for templates that do not walk over parts.
Status flatten_content(Context& message, const std::string& where) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null() || content->is_string()) return {};
  if (!content->is_array()) return fail(Code::kInvalidArgument, where, ".content is ", content->type_name(), ": expected text or a list of parts");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Context& part = (*content)[i];
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string() && (!part.contains("type") || part["type"] == "text");
    if (!is_text)
      return fail(Code::kInvalidArgument, where, ".content[", i, "]: expected {\"type\": \"text\", \"text\": ...}, since models take text only");
    text += cat(i > 0 ? "\n" : "", part["text"].get<std::string>());
  }
  *content = text;
  return {};
}

}  // namespace

Result<std::shared_ptr<const ChatPrompts>> ChatPrompts::load(const std::filesystem::path& folder, std::shared_ptr<const Tokenizer> tokenizer) {
  const auto prompts = std::make_shared<ChatPrompts>();
  prompts->tokenizer_ = std::move(tokenizer);
  const auto add = [&](const std::string& name, const std::string& text, const std::string& path) -> Status {
    SEER_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::parse(text, path));
    prompts->templates_.emplace(name, std::move(parsed));
    return {};
  };
  const std::filesystem::path config_path = folder / "tokenizer_config.json", own_path = folder / "chat_template.jinja";
  SEER_ASSIGN_OR_RETURN(const nlohmann::json read, read_tokenizer_config(folder));
  const Context config = read.is_null() ? Context::object() : Context(read);
  for (const auto& [name, value] : config.items())
    if (name.ends_with("_token"))
      if (std::string text = special_text(value); !text.empty()) prompts->special_texts_[name] = std::move(text);

  if (std::filesystem::exists(own_path)) {
    SEER_ASSIGN_OR_RETURN(const std::string text, read_file(own_path));
    SEER_RETURN_IF_ERROR(add("default", text, own_path.string()));
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "additional_chat_templates", ignored)) {
      if (entry.path().extension() != ".jinja") continue;
      SEER_ASSIGN_OR_RETURN(const std::string named, read_file(entry.path()));
      SEER_RETURN_IF_ERROR(add(entry.path().stem().string(), named, entry.path().string()));
    }
    return std::shared_ptr<const ChatPrompts>(prompts);
  }
  const Context given = config.value("chat_template", Context());
  const std::string path = config_path.string() + ": chat_template";
  if (given.is_null()) return fail(Code::kNotFound, folder.string(), " has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json");
  if (given.is_string()) {
    SEER_RETURN_IF_ERROR(add("default", given.get<std::string>(), path));
    return std::shared_ptr<const ChatPrompts>(prompts);
  }
  // Older files name several: [{"name": "default", "template": "..."}, ...]
  const auto is_named = [](const Context& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") && entry["template"].is_string();
  };
  if (!given.is_array() || given.empty()) return fail(Code::kInvalidArgument, path, " is ", given.type_name(), ": expected text or a list of templates");
  for (const Context& entry : given) {
    if (!is_named(entry)) return fail(Code::kInvalidArgument, path, ": expected objects with name and template");
    SEER_RETURN_IF_ERROR(add(entry["name"].get<std::string>(), entry["template"].get<std::string>(), path));
  }
  if (!prompts->templates_.contains("default")) return fail(Code::kInvalidArgument, path, ": expected a template named default");
  return std::shared_ptr<const ChatPrompts>(prompts);
}

Result<std::vector<int32_t>> ChatPrompts::prompt(const Json& fields, const std::string& found) const {
  const auto messages = fields.find("messages");
  if (messages == fields.end() || !messages->is_array() || messages->empty())
    return fail(Code::kInvalidArgument, found, "messages is ", messages == fields.end() ? "missing" : shown_value(*messages),
                ": expected a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i)
    if (const Json& message = (*messages)[i]; !message.is_object() || !message.contains("role") || !message["role"].is_string())
      return fail(Code::kInvalidArgument, found, "messages[", i, "]: expected an object with a role");

  Context context = {{"messages", context_of(*messages)}, {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
  for (size_t i = 0; i < messages->size(); ++i) SEER_RETURN_IF_ERROR(flatten_content(context["messages"][i], cat(found, "messages[", i, "]")));
  for (const auto& [name, text] : special_texts_) context[name] = text;
  for (const char* const name : {"tools", "documents"})
    if (const auto at = fields.find(name); at != fields.end() && !at->empty()) {
      if (!at->is_array()) return fail(Code::kInvalidArgument, found, name, " is ", shown_value(*at), ": expected a list");
      context[name] = context_of(*at);
    }
  if (const auto at = fields.find("add_generation_prompt"); at != fields.end() && !at->is_null()) {
    if (!at->is_boolean()) return fail(Code::kInvalidArgument, found, "add_generation_prompt is ", shown_value(*at), ": expected true or false");
    context["add_generation_prompt"] = at->get<bool>();
  }
  if (const auto at = fields.find("chat_template_kwargs"); at != fields.end() && !at->is_null()) {
    if (!at->is_object()) return fail(Code::kInvalidArgument, found, "chat_template_kwargs is ", shown_value(*at), ": expected an object");
    for (const auto& [name, value] : at->items()) context[name] = context_of(value);
  }
  const bool uses_tools = !context["tools"].is_null() && templates_.contains("tool_use");
  const Result<std::string> text = templates_.at(uses_tools ? "tool_use" : "default").render(context, {.now = local_time()});
  if (!text.ok()) return fail(Code::kInvalidArgument, found, text.error().detail);
  return tokenizer_->encode(*text);
}

Result<std::vector<int32_t>> prompt_ids_of(const PromptLine& line, const PromptMakers& makers, const std::string& found) {
  if (!line.prompt_ids.empty()) return line.prompt_ids;
  const bool is_chat = !line.chat.empty();
  if (makers.tokenizer == nullptr)
    return fail(Code::kInvalidArgument, found, is_chat ? "messages are" : "\"prompt\" is", " text, but ", makers.model,
                " has no tokenizer; give \"prompt_ids\" instead");
  if (is_chat && makers.chat == nullptr)
    return fail(Code::kInvalidArgument, found, "messages need a chat template, and ", makers.model, " has none; give \"prompt\" instead");
  if (is_chat) {
    SEER_ASSIGN_OR_RETURN(const Json chat, field_value(line.chat, found));
    return makers.chat->prompt(chat, found);
  }
  auto ids = makers.tokenizer->encode(line.prompt, {.add_special = true});
  if (!ids.ok()) return fail(Code::kInvalidArgument, found, ids.error().detail);
  return ids;
}

}  // namespace seer
