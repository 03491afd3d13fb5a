#include "cli/chat_prompts.h"

#include <doctest/doctest.h>

#include <string>

#include "cli/scratch.h"

using namespace seer;

namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto loaded = load_tokenizer(SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8").value();
  return loaded;
}
const std::string kAsk = R"({"messages": [{"role": "user", "content": "2+3"}])";

/// The text of the prompt, or the error's sentence.
std::string prompt_text(const ScratchFolder& folder, const std::string& fields) {
  const auto chat = ChatPrompts::load(folder.path(""), tokenizer());
  if (!chat.ok()) return chat.error().detail;
  const auto ids = (*chat)->prompt(Json::parse(fields), "p:1: ");
  return ids.ok() ? tokenizer()->decode(*ids) : ids.error().detail;
}

}  // namespace

TEST_CASE("chat prompts: chat_template.jinja goes before tokenizer_config.json, and reads its special tokens") {
  const ScratchFolder folder;
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "B"}, "eos_token": "E", "pad_token": null, "chat_template": "old"})");
  CHECK(prompt_text(folder, kAsk + "}") == "old");
  folder.write("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}");
  CHECK(prompt_text(folder, kAsk + "}") == "B2+3E>");
  CHECK(prompt_text(folder, kAsk + R"(, "add_generation_prompt": false})") == "B2+3E");
  folder.write("special_tokens_map.json", R"({"bos_token": "C"})");  // counts only where the configuration lists no added tokens
  CHECK(prompt_text(folder, kAsk + "}") == "C2+3E>");
  folder.write("tokenizer_config.json", R"({"bos_token": "B", "eos_token": "E", "added_tokens_decoder": {}})");
  CHECK(prompt_text(folder, kAsk + "}") == "B2+3E>");
}

TEST_CASE("chat prompts: decimals are those that Python reads") {
  const ScratchFolder folder;
  folder.write("chat_template.jinja", "{{ x | tojson }}");
  for (const std::string text : {"57.357958", "[5.357599, 4.376471]", "0.1", "-2.5e-07", "123456.789012", "1e+22", "3.0"})
    CHECK(prompt_text(folder, kAsk + R"(, "chat_template_kwargs": {"x": )" + text + "}}") == text);
}

TEST_CASE("chat prompts: content in parts is their texts, a line each") {
  const ScratchFolder folder;
  folder.write("chat_template.jinja", "{{ messages[0].content }}");
  CHECK(prompt_text(folder, R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "2+3"}]}]})") == "2+3");
  CHECK(prompt_text(folder, R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "2+3"}, {"text": "=5"}]}]})") == "2+3\n=5");
}

TEST_CASE("chat prompts: with tools the template named for tools is used") {
  const ScratchFolder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}]})");
  CHECK(prompt_text(folder, kAsk + "}") == "plain");
  CHECK(prompt_text(folder, kAsk + R"(, "tools": []})") == "plain");
  CHECK(prompt_text(folder, kAsk + R"(, "tools": [{"name": "add"}]})") == "add");
}

TEST_CASE("chat prompts: chat_template_kwargs reach the template in their own types") {
  const ScratchFolder folder;
  folder.write("chat_template.jinja", "{{ 'yes' if thinks else 'no' }}{{ share + 1 }}");
  CHECK(prompt_text(folder, kAsk + R"(, "chat_template_kwargs": {"thinks": true, "share": 0.5}})") == "yes1.5");
}

TEST_CASE("chat prompts: a wrong folder or conversation is refused with a sentence") {
  const ScratchFolder folder;
  CHECK(ChatPrompts::load(folder.path(""), tokenizer()).error().code == Code::kNotFound);
  folder.write("tokenizer_config.json", "[1");
  CHECK(prompt_text(folder, kAsk + "}").find("tokenizer_config.json:1 is not valid JSON") != std::string::npos);
  folder.write("tokenizer_config.json", "[1]");
  CHECK(prompt_text(folder, kAsk + "}").find("tokenizer_config.json: expected a JSON object") != std::string::npos);
  for (const auto& [given, sentence] : {std::pair{"5", "chat_template is number: expected text or a list of templates"},
                                        std::pair{"[{\"name\": \"x\"}]", "expected objects with name and template"},
                                        std::pair{"[{\"name\": \"x\", \"template\": \"\"}]", "expected a template named default"},
                                        std::pair{"\"{% if %}\"", "chat_template"}}) {
    folder.write("tokenizer_config.json", std::string("{\"chat_template\": ") + given + "}");
    CHECK(prompt_text(folder, kAsk + "}").find(sentence) != std::string::npos);
  }
  folder.write("chat_template.jinja", "{{ raise_exception('no system here') }}");
  CHECK(prompt_text(folder, kAsk + "}").starts_with("p:1: "));
  CHECK(prompt_text(folder, kAsk + "}").find("no system here") != std::string::npos);
  CHECK(prompt_text(folder, R"({"messages": [{"role": "user", "content": 5}]})") == "p:1: messages[0].content is number: expected text or a list of parts");
  CHECK(prompt_text(folder, R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "image_url", "image_url": {"url": "x"}}]}]})") ==
        "p:1: messages[0].content[1]: expected {\"type\": \"text\", \"text\": ...}, since models take text only");
  CHECK(prompt_text(folder, kAsk + R"(, "tools": 5})") == "p:1: tools is 5: expected a list");
  CHECK(prompt_text(folder, "{}") == "p:1: messages is missing: expected a list of at least one message");
  CHECK(prompt_text(folder, R"({"messages": ["hi"]})") == "p:1: messages[0]: expected an object with a role");
  CHECK(prompt_text(folder, kAsk + R"(, "add_generation_prompt": 1})") == "p:1: add_generation_prompt is 1: expected true or false");
}

TEST_CASE("chat prompts: templates beside chat_template.jinja go by their names, and tool_use is that of chats with tools") {
  const ScratchFolder folder;
  folder.write("chat_template.jinja", "plain {{ messages[0].content }}");
  std::filesystem::create_directory(folder.path("additional_chat_templates"));
  folder.write("additional_chat_templates/tool_use.jinja", "{{ tools | length }} tools {{ messages[0].content }}");
  folder.write("additional_chat_templates/notes.txt", "{% no template");
  const std::string ask = R"({"messages": [{"role": "user", "content": "2+3"}])";
  CHECK(prompt_text(folder, ask + "}") == "plain 2+3");
  CHECK(prompt_text(folder, ask + R"(, "tools": [{"type": "function"}]})") == "1 tools 2+3");
}

TEST_CASE("chat prompts: the prompt of a line is its tokens, its text or its conversation, if the folder can make it") {
  const ScratchFolder folder;
  folder.write("chat_template.jinja", "{{ messages[0].content }}{% if add_generation_prompt %}={% endif %}");
  const auto chat = ChatPrompts::load(folder.path(""), tokenizer()).value();
  const PromptMakers all{"M", tokenizer().get(), chat.get()}, no_chat{"M", tokenizer().get()}, none{"M"};
  const PromptLine ids{.prompt_ids = {5, 6}}, text{.prompt = "2+3="}, talk{.chat = kAsk + "}"}, wrong{.chat = R"({"messages": []})"};
  CHECK(prompt_ids_of(ids, none, "").value() == std::vector{5, 6});
  CHECK(prompt_ids_of(text, no_chat, "").value() == tokenizer()->encode("2+3=", {.add_special = true}).value());
  CHECK(prompt_ids_of(talk, all, "").value() == tokenizer()->encode("2+3=").value());
  CHECK(prompt_ids_of(text, none, "p:4: ").error().detail == "p:4: \"prompt\" is text, but M has no tokenizer; give \"prompt_ids\" instead");
  CHECK(prompt_ids_of(talk, none, "p:4: ").error().detail == "p:4: messages are text, but M has no tokenizer; give \"prompt_ids\" instead");
  CHECK(prompt_ids_of(talk, no_chat, "p:4: ").error().detail == "p:4: messages need a chat template, and M has none; give \"prompt\" instead");
  CHECK(prompt_ids_of(wrong, all, "p:4: ").error().detail == "p:4: messages is array: expected a list of at least one message");
}
