#include "cli/config.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <memory>
#include <set>

#include "cli/help_texts.h"
#include "cli/ineffective_options.h"
#include "cli/man_page.h"
#include "cli/option.h"
#include "cli/option_checks.h"
#include "cli/option_tables.h"
#include "cli/shell_completion.h"
#include "cli/suggestion.h"
#include "cli/toml_options.h"

namespace seer {
namespace {

constexpr const char* kVersion = "seer 0.1.0";

/// All options as a file that --config reads.
std::string config_text(const std::vector<OptionGroup>& groups, const std::string& table_name) {
  std::string text = cat("# Options of `seer ", table_name, "`, for --config. Flags of the same names override them.\n",
                         "# An empty text or list means: not given.\n[", table_name, "]\n");
  for (const OptionGroup& group : groups) {
    text += cat("\n# ---- ", group.title, "\n");
    for (const OptionSpec& spec : group.options) {
      const bool named = std::holds_alternative<OneOf>(spec.check);
      text += cat("# ", spec.help, named ? cat(": ", expectation(spec)) : "", "\n", spec.name, " = ", toml_value(spec),
                  "\n");
    }
  }
  return text;
}

/// A subcommand: its option table, and the function that reads its options.
struct Subcommand {
  CommandSpec spec;
  std::function<Result<Command>(const TypedCommand& typed, std::vector<std::string>* warnings)> finish;
};

/// The options that are given by flag, or have another value than the default.
std::set<std::string> given_options(const std::vector<OptionGroup>& groups, const std::vector<OptionGroup>& defaults,
                                    const TypedCommand& typed) {
  std::set<std::string> given;
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].options.size(); ++i) {
      const OptionSpec& spec = groups[g].options[i];
      if (typed.values.contains(spec.name) || toml_value(spec) != toml_value(defaults[g].options[i])) given.insert(spec.name);
    }
  return given;
}

/// A command with options of its own. They are set from the file of --config, if any, then from the flags, and then checked together.
template <class Options>
Subcommand make_subcommand(const char* name, const char* what, const char* examples, bool has_config, std::string notes = "") {
  struct Open {
    Options options;
    std::vector<OptionGroup> in_file;
    std::string config_path;
    bool print_config = false, help = false;
  };
  auto open = std::make_shared<Open>();
  open->in_file = option_groups(open->options);
  OptionGroup general{"Options", {{kHelpOption, "", &open->help, "print this help and exit"}}};
  if (has_config) {
    general.options.push_back({"config", "FILE", &open->config_path, cat("TOML file with a table [", name, "]; flags override it")});
    general.options.push_back({"print-config", "", &open->print_config, "print the options in effect as such a file and exit"});
  }
  const CommandSpec about_file{name, what, examples, {general}};
  CommandSpec spec = about_file;
  spec.notes = std::move(notes);
  spec.options.insert(spec.options.end(), open->in_file.begin(), open->in_file.end());
  const auto finish = [open, about_file, spec](const TypedCommand& typed, std::vector<std::string>* warnings) -> Result<Command> {
    SEER_RETURN_IF_ERROR(apply_typed(about_file, typed));
    if (!open->config_path.empty())
      SEER_RETURN_IF_ERROR(apply_toml_file(
          open->config_path, {.name = spec.name,
                              .options = open->in_file,
                              .keys = cat("the name of a flag of seer ", spec.name, " without its dashes")}));
    SEER_RETURN_IF_ERROR(apply_typed(spec, typed));  // over the file
    if (open->print_config) return Command{PrintAndExit{config_text(open->in_file, spec.name)}};
    SEER_RETURN_IF_ERROR(check_together(open->options));
    if (warnings) {
      Options defaults;
      *warnings = ineffective_options(open->options, given_options(open->in_file, option_groups(defaults), typed));
      for (std::string& warning : *warnings)  // "--NAME has no effect ...": of what the file gives, it names the file
        if (!typed.values.contains(warning.substr(2, warning.find(' ') - 2))) warning = cat(open->config_path, ": ", warning);
    }
    return Command{open->options};
  };
  return {std::move(spec), finish};
}

/// A command that prints a text made from the table of all commands. `text` gets the word after the command.
Subcommand make_printer(CommandSpec spec, std::function<std::string(const std::string& word)> text) {
  const auto finish = [text, spec](const TypedCommand& typed, std::vector<std::string>*) -> Result<Command> {
    const bool known = spec.word.empty() || std::find(spec.words.begin(), spec.words.end(), typed.word) != spec.words.end();
    if (!known)
      return fail(Code::kInvalidArgument, "seer ", spec.name, typed.word.empty() ? "" : " ", shown_value(typed.word), ": expected one of ",
                  joined(spec.words), did_you_mean(typed.word, spec.words));
    return Command{PrintAndExit{text(typed.word)}};
  };
  return {spec, finish};
}

/// An argument as a shell takes it.
std::string shell_word(const std::string& argument) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("-_./=,:+@%", c) != nullptr; };
  if (!argument.empty() && std::ranges::all_of(argument, is_plain)) return argument;
  std::string word = "'";
  for (const char c : argument) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + '\'';
}

/// The command as a shell takes it, without the options that name files for output: these change no figure.
std::string command_text(const std::vector<std::string>& arguments) {
  std::string text = "seer";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    const bool names_output = name == "--html" || name == "--report" || name == "--csv" || name == "--log-file";
    if (!names_output)
      text += cat(' ', shell_word(arguments[i]));
    else if (name == arguments[i])
      ++i;  // the file is the next argument
  }
  return text;
}

}  // namespace

NodeRoles roles_of(const NodeOptions& options) {
  NodeRoles roles;
  for (const std::string& name : options.roles)
    roles.add(static_cast<NodeRole>(std::ranges::find(kNodeRoleNames, name) - kNodeRoleNames.begin()));
  if (!options.roles.empty()) return roles;
  if (options.join.empty()) roles.add(NodeRole::kController);
  if (options.instances == 0) return roles;
  roles.add(NodeRole::kInstances);
  if (options.dram_bytes > 0) roles.add(NodeRole::kKv);
  if (draft_source(options) == DraftSource::kGrouped) roles.add(NodeRole::kDraft);
  return roles;
}

Result<Command> parse_command_line(const std::vector<std::string>& arguments, std::vector<std::string>* warnings) {
  ProgramSpec program{.version = kVersion, .what = "rollouts of language models for reinforcement learning", .commands = {}};
  std::vector<Subcommand> subcommands{
      make_subcommand<RolloutOptions>("rollout", "make a group of responses for every prompt", kRolloutExamples, true, rollout_notes()),
      make_subcommand<ServeOptions>("serve", "answer trainers and other clients over HTTP, as SGLang does", kServeExamples, true),
      make_subcommand<NodeOptions>("node", "run a machine of a cluster: instances, drafts and KV pool", kNodeExamples, true),
      make_subcommand<StatusOptions>("status", "show the machines and rollouts of a cluster", kStatusExamples, false),
      make_subcommand<DrainOptions>("drain", "let a machine leave a cluster; its work goes on elsewhere", kDrainExamples, false),
      make_subcommand<ScoreOptions>("score", "compute log-probabilities of given responses", kScoreExamples, false),
      make_subcommand<ProfileOptions>("profile", "measure how long steps of a model take, and fit a cost model",
                                      kProfileExamples, false),
      make_subcommand<SimulateOptions>("simulate", "simulate rollouts of whole clusters in virtual time, policies side by side",
                                       kSimulateExamples, true, simulate_notes()),
      make_subcommand<DoctorOptions>("doctor", "what this machine has, and how to add what it lacks", kDoctorExamples, false),
      make_printer({"completion", "print the completions of a shell", kCompletionExamples, {}, "SHELL", completion_shells()},
                   [&](const std::string& shell) { return shell_completion(program, shell); }),
      make_printer({"man", "print the manual page", kManExamples, {}}, [&](const std::string&) { return man_page(program); }),
      make_printer({kHelpCommand, "list the commands, or the options of one", "", {}, "COMMAND", {}}, {})};
  for (const Subcommand& subcommand : subcommands) program.commands.push_back(subcommand.spec);
  for (const Subcommand& subcommand : subcommands) program.commands.back().words.push_back(subcommand.spec.name);

  SEER_ASSIGN_OR_RETURN(const auto read, read_arguments(program, arguments));
  if (const auto* print = std::get_if<PrintAndExit>(&read)) return Command{*print};
  const auto& typed = std::get<TypedCommand>(read);
  const auto found = std::ranges::find_if(subcommands, [&](const Subcommand& s) { return s.spec.name == typed.name; });
  SEER_ASSIGN_OR_RETURN(Command command, found->finish(typed, warnings));
  if (auto* const simulate = std::get_if<SimulateOptions>(&command)) simulate->command_line = command_text(arguments);
  return command;
}

}  // namespace seer
