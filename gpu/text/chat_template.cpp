#include "gpu/text/chat_template.h"

#include <nlohmann/json.hpp>

#include "gpu/text/jinja_run.h"
#include "gpu/text/jinja_syntax.h"

namespace seer {

struct JinjaTemplate {
  std::string name;
  JinjaLimits limits;
  JinjaStatement root;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view text, std::string name, const ChatTemplateLimits& limits) {
  if (text.size() > limits.template_bytes_max)
    return fail(Code::kFull, "chat template ", name, " has ", text.size(), " bytes; expected at most ",
                limits.template_bytes_max);
  auto parsed = std::make_shared<JinjaTemplate>();
  parsed->name = std::move(name);
  parsed->limits = {
      .steps_max = limits.steps_max, .output_bytes_max = limits.output_bytes_max, .depth_max = limits.depth_max};
  SEER_ASSIGN_OR_RETURN(parsed->root, parse_jinja(text, parsed->name));
  return ChatTemplate(std::move(parsed));
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, const RenderOptions& options) const {
  if (!context.is_object())
    return fail(Code::kInvalidArgument, "chat template ", parsed_->name, ": the context is of type ",
                context.type_name(), "; expected an object");
  SEER_ASSIGN_OR_RETURN(const JinjaValue values, jinja_from_json(context, "the context"));
  JinjaRun run(parsed_->name, parsed_->limits, options.now);
  return run.render(parsed_->root, values);
}

}  // namespace seer
