#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/suggestion.h"

namespace seer {
namespace {

/// A command while its flags are read. CLI11 fills in `typed`.
struct OpenCommand {
  const CommandSpec* spec = nullptr;
  CLI::App* app = nullptr;
  TypedCommand typed;
};

std::vector<std::string> option_names(const CommandSpec& command) {
  std::vector<std::string> names;
  for (const OptionGroup& group : command.options)
    for (const OptionSpec& spec : group.options) names.push_back(spec.name);
  return names;
}

std::vector<std::string> command_names(const ProgramSpec& program) {
  std::vector<std::string> names;
  for (const CommandSpec& command : program.commands) names.push_back(command.name);
  return names;
}

bool has_option(const CommandSpec& command, const std::string& name) {
  const std::vector<std::string> names = option_names(command);
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr int kWordsMax = 64;  // of one option

bool takes_words(const OptionSpec& spec) {
  const auto* repeated = std::get_if<RepeatedField>(&spec.field);
  return repeated != nullptr && repeated->words;
}

void add_flags(OpenCommand& open) {
  CLI::App& app = *open.app;
  for (const OptionGroup& group : open.spec->options)
    for (const OptionSpec& spec : group.options) {
      if (spec.name == kHelpOption) continue;
      std::vector<std::string>& values = open.typed.values[spec.name];
      CLI::Option* option = is_switch(spec) ? app.add_flag("--" + spec.name, values, help_text(spec))
                                            : app.add_option("--" + spec.name, values, help_text(spec))
                                                  ->expected(1, takes_words(spec) ? kWordsMax : 1)
                                                  ->allow_extra_args(takes_words(spec))
                                                  ->type_name(spec.value);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group(group.title);
    }
  if (!open.spec->word.empty()) app.add_option(open.spec->word, open.typed.word, cat("one of ", joined(open.spec->words)));
}

/// "seer rollout, seer score": the commands that know an option.
std::string owners_of(const ProgramSpec& program, const std::string& option) {
  std::string owners;
  for (const CommandSpec& command : program.commands)
    if (has_option(command, option)) owners += cat(owners.empty() ? "" : ", ", "seer ", command.name);
  return owners;
}

/// Suggests the nearest known name; if none is near, returns `otherwise`.
std::string hint(const std::string& typed, const std::vector<std::string>& known, const std::string& prefix,
                 const std::string& otherwise) {
  const std::string meant = did_you_mean(typed, known, prefix);
  return meant.empty() ? "; " + otherwise : meant;
}

/// What other servers call an option of ours.
std::string name_elsewhere(const std::string& name) {
  static const std::map<std::string, std::string> kNames{{"host", "listen"},
                                                         {"port", "listen"},
                                                         {"model-path", "model"},
                                                         {"served-model-name", "served-name"},
                                                         {"api-key", "token-file"},
                                                         {"tp", "tensor-parallel"},
                                                         {"tp-size", "tensor-parallel"},
                                                         {"tensor-parallel-size", "tensor-parallel"},
                                                         {"max-num-seqs", "max-batch"},
                                                         {"max-running-requests", "max-batch"}};
  const auto found = kNames.find(name);
  return found == kNames.end() ? "" : found->second;
}

Error unknown_option(const ProgramSpec& program, const CommandSpec* command, const std::string& typed) {
  const std::string flag = typed.substr(0, typed.find('='));
  const std::string name = flag.substr(std::min(flag.size(), flag.find_first_not_of('-')));
  const std::string owners = owners_of(program, name);
  if (!command)
    return owners.empty() ? fail(Code::kInvalidArgument, "unknown option ", shown_value(flag),
                                 hint(name, {"help", "version"}, "--", "seer --help lists the commands"))
                          : fail(Code::kInvalidArgument, flag, " belongs after its command: ", owners);
  if (has_option(*command, name) && flag == "--" + name)  // `seer --model m rollout`
    return fail(Code::kInvalidArgument, flag, " belongs after its command: seer ", command->name, " ", flag);
  if (!owners.empty() && !has_option(*command, name))
    return fail(Code::kInvalidArgument, flag, " is not an option of seer ", command->name, "; it belongs to ", owners);
  if (const std::string ours = name_elsewhere(name); !ours.empty() && has_option(*command, ours))
    return fail(Code::kInvalidArgument, "unknown option ", shown_value(flag), "; here it is --", ours);
  return fail(Code::kInvalidArgument, "unknown option ", shown_value(flag),
              hint(name, option_names(*command), "--", cat("seer ", command->name, " --help lists its options")));
}

/// The name of an option that took the next option as its value: `--model --prompts p.jsonl`. Empty: none did.
std::string option_without_value(const OpenCommand& open) {
  for (const auto& [name, values] : open.typed.values)
    for (const std::string& value : values)
      if (value.starts_with("--") && has_option(*open.spec, value.substr(2, value.find('=') - 2))) return name;
  return "";
}

Error without_value(const CommandSpec& command, const std::string& name) {
  for (const OptionGroup& group : command.options)
    for (const OptionSpec& spec : group.options)
      if (spec.name == name)
        return fail(Code::kInvalidArgument, "--", name, " has no value: expected ", expectation(spec));
  return fail(Code::kInvalidArgument, "--", name, " has no value");
}

/// The error for what CLI11 could not place: an option, a command, or a word too many.
Error unexpected(const ProgramSpec& program, const OpenCommand* open, const std::string& typed) {
  if (open)
    if (const std::string name = option_without_value(*open); !name.empty()) return without_value(*open->spec, name);
  if (typed.starts_with("-") && typed != "--") return unknown_option(program, open ? open->spec : nullptr, typed);
  if (!open)
    return fail(Code::kInvalidArgument, "unknown command ", shown_value(typed),
                hint(typed, command_names(program), "", "the commands are " + joined(command_names(program))));
  return fail(Code::kInvalidArgument, "unexpected word ", shown_value(typed), " after seer ", open->spec->name,
              open->typed.values.size() > 2 ? ": it takes only options; a value with spaces needs quotes" : "");
}

}  // namespace

std::string help_text(const OptionSpec& spec) {
  const std::string standard = default_text(spec);
  const std::string known = std::holds_alternative<OneOf>(spec.check) ? cat(": ", expectation(spec)) : "";
  return cat(spec.help, known, standard.empty() ? "" : cat(" [", standard, "]"));
}

bool has_sizes(const CommandSpec& command) {
  for (const OptionGroup& group : command.options)
    for (const OptionSpec& spec : group.options)
      if (std::holds_alternative<SizeField>(spec.field)) return true;
  return false;
}

Result<std::variant<PrintAndExit, TypedCommand>> read_arguments(const ProgramSpec& program,
                                                               const std::vector<std::string>& arguments) {
  CLI::App app{"Seer: " + program.what, "seer"};
  app.set_version_flag("-V,--version", program.version, "print the version");
  app.set_help_flag("-h,--help", "print this help and exit");
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(32);
  app.footer("\n`seer COMMAND --help` and `seer help COMMAND` list the options of a command, with examples.");
  std::vector<OpenCommand> commands(program.commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    OpenCommand& open = commands[i];
    open.spec = &program.commands[i];
    open.typed.name = open.spec->name;
    open.app = app.add_subcommand(open.spec->name, open.spec->what);
    const std::string sizes = has_sizes(*open.spec) ? cat(kSizeUnits, "\n\n") : "";
    open.app->footer(cat("\n", sizes, open.spec->notes, open.spec->notes.empty() ? "" : "\n", open.spec->examples.empty() ? "" : "Examples:\n", open.spec->examples));
    add_flags(open);
  }
  const auto typed_command = [&]() -> OpenCommand* {
    const auto found = std::ranges::find_if(commands, [](const OpenCommand& c) { return c.app->parsed(); });
    return found == commands.end() ? nullptr : &*found;
  };
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForVersion&) {
    return {PrintAndExit{cat(program.version, "\n")}};
  } catch (const CLI::CallForHelp&) {
    return {PrintAndExit{app.help()}};
  } catch (const CLI::ExtrasError&) {
    return unexpected(program, typed_command(), app.remaining(true).front());
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string said = e.what();  // "--model: 1 required DIR missing"
    const OpenCommand* const open = typed_command();
    if (open && said.starts_with("--")) return without_value(*open->spec, said.substr(2, said.find(':') - 2));
    return fail(Code::kInvalidArgument, "the arguments cannot be read (", said, "); see seer --help");
  } catch (const CLI::ParseError& e) {
    return fail(Code::kInvalidArgument, "the arguments cannot be read (", e.what(), "); see seer --help");
  }
  OpenCommand* const open = typed_command();
  if (!open) return {PrintAndExit{.text = app.help(), .exit_code = 2}};
  if (open->spec->name == kHelpCommand) {
    const auto asked = std::ranges::find_if(commands, [&](const OpenCommand& c) { return c.spec->name == open->typed.word; });
    if (asked != commands.end()) return {PrintAndExit{asked->app->help("seer")}};
    if (!open->typed.word.empty()) return unexpected(program, nullptr, open->typed.word);
    return {PrintAndExit{app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)}};
  }
  std::erase_if(open->typed.values, [](const auto& named) { return named.second.empty(); });
  return {std::move(open->typed)};
}

Status apply_typed(const CommandSpec& command, const TypedCommand& typed) {
  for (const OptionGroup& group : command.options)
    for (const OptionSpec& spec : group.options) {
      const auto found = typed.values.find(spec.name);
      if (found == typed.values.end()) continue;
      std::vector<std::string> values = found->second;
      if (is_switch(spec)) values.erase(std::unique(values.begin(), values.end()), values.end());
      if (values.size() > 1 && !is_repeatable(spec))
        return fail(Code::kInvalidArgument, "--", spec.name, " is given ", values.size(), " times; give it once");
      if (const Status set = set_option(spec, values); !set.ok())
        return fail(Code::kInvalidArgument, "--", spec.name, is_switch(spec) ? "=" : " ", shown_value(values.back()),
                    ": expected ", set.error().detail);
    }
  return {};
}

}  // namespace seer
