#include "cli/shell_completion.h"

namespace seer {
namespace {

/// How the value of an option is completed.
enum class ValueKind { kNone, kAny, kFile, kFolder, kNames, kNameList };

ValueKind kind_of(const OptionSpec& spec) {
  if (is_switch(spec)) return ValueKind::kNone;
  if (std::holds_alternative<OneOf>(spec.check)) return is_list(spec) ? ValueKind::kNameList : ValueKind::kNames;
  return spec.value == "FILE" ? ValueKind::kFile : spec.value == "DIR" ? ValueKind::kFolder : ValueKind::kAny;
}

std::string spaced(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) (text += text.empty() ? "" : " ") += name;
  return text;
}

std::string names_of(const OptionSpec& spec) { return spaced(std::get<OneOf>(spec.check).names); }

/// The text between single quotes of bash and zsh, whose only special character is the quote.
std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

template <class F>
void for_each_option(const CommandSpec& command, F&& visit) {
  for (const OptionGroup& group : command.options)
    for (const OptionSpec& spec : group.options) visit(spec);
}

// ---- bash ------------------------------------------------------------------------------------------------------------

// COMP_WORDBREAKS has '=': "--policy=se" is the three words --policy, = and se.
constexpr const char* kBashHead = R"(# bash completion of seer, made by `seer completion bash`

_seer() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
  if [[ $word == '=' ]]; then
    word=
  elif [[ $before == '=' ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  COMPREPLY=()
)";
constexpr const char* kBashTail = R"(}

# Completes the name after the last comma.
_seer_list() {
  local done=
  [[ $word == *,* ]] && done=${word%,*},
  mapfile -t COMPREPLY < <(compgen -P "$done" -W "$1" -- "${word##*,}")
}

complete -F _seer seer
)";

std::string bash_value(const OptionSpec& spec) {
  switch (kind_of(spec)) {
    case ValueKind::kFile: return "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\")";
    case ValueKind::kFolder: return "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$word\")";
    case ValueKind::kNames: return cat("mapfile -t COMPREPLY < <(compgen -W ", single_quoted(names_of(spec)), " -- \"$word\")");
    case ValueKind::kNameList: return cat("_seer_list ", single_quoted(names_of(spec)));
    case ValueKind::kAny: return ":";
    case ValueKind::kNone: break;
  }
  return "";
}

std::string bash_completion(const ProgramSpec& program) {
  std::vector<std::string> commands;
  std::string values, options;
  for (const CommandSpec& command : program.commands) {
    commands.push_back(command.name);
    std::vector<std::string> known = command.words;
    for_each_option(command, [&](const OptionSpec& spec) {
      known.push_back("--" + spec.name);
      if (kind_of(spec) != ValueKind::kNone)
        values += cat("    '", command.name, " --", spec.name, "') ", bash_value(spec), "; return ;;\n");
    });
    options += cat("    ", command.name, ") mapfile -t COMPREPLY < <(compgen -W ", single_quoted(spaced(known)), " -- \"$word\") ;;\n");
  }
  const std::string first = cat("  if ((COMP_CWORD == 1)); then\n    mapfile -t COMPREPLY < <(compgen -W ",
                                single_quoted(spaced(commands) + " --help --version"), " -- \"$word\")\n    return\n  fi\n");
  return cat(kBashHead, first, "  case \"$command $before\" in\n", values, "  esac\n  case $command in\n", options, "  esac\n", kBashTail);
}

// ---- zsh -------------------------------------------------------------------------------------------------------------

/// A text inside the brackets or the message of an _arguments line.
std::string zsh_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const OptionSpec& spec) {
  const std::string what = cat(":", spec.value, ":");
  switch (kind_of(spec)) {
    case ValueKind::kFile: return what + "_files";
    case ValueKind::kFolder: return what + "_files -/";
    case ValueKind::kNames: return cat(what, "(", names_of(spec), ")");
    case ValueKind::kNameList: return cat(what, "_sequence compadd - ", names_of(spec));
    case ValueKind::kAny: return what + " ";
    case ValueKind::kNone: break;
  }
  return "";
}

std::string zsh_completion(const ProgramSpec& program) {
  std::string commands, options;
  for (const CommandSpec& command : program.commands) {
    commands += cat("    ", single_quoted(cat(command.name, ":", zsh_escaped(command.what))), "\n");
    options += cat("    ", command.name, ")\n      _arguments -s");
    for_each_option(command, [&](const OptionSpec& spec) {
      const std::string repeated = is_repeatable(spec) ? "*" : "";
      options += cat(" \\\n        ",
                     single_quoted(cat(repeated, "--", spec.name, is_switch(spec) ? "" : "=", "[", zsh_escaped(spec.help), "]",
                                       zsh_value(spec))));
    });
    if (!command.words.empty()) options += cat(" \\\n        ", single_quoted(cat("1:", command.word, ":(", spaced(command.words), ")")));
    options += "\n      ;;\n";
  }
  return cat("#compdef seer\n# zsh completion of seer, made by `seer completion zsh`\n\n_seer() {\n  local -a commands=(\n", commands,
             "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
             "  local command=${words[2]}\n  shift words\n  ((CURRENT--))\n  case $command in\n",
             options, "  esac\n}\n\nif [[ $funcstack[1] == _seer ]]; then _seer \"$@\"; else compdef _seer seer; fi\n");
}

// ---- fish ------------------------------------------------------------------------------------------------------------

/// The text between single quotes of fish, where a backslash escapes.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_value(const OptionSpec& spec) {
  switch (kind_of(spec)) {
    case ValueKind::kFile: return " -r -F";
    case ValueKind::kFolder: return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kNames: return cat(" -x -a ", fish_quoted(names_of(spec)));
    case ValueKind::kNameList: return cat(" -x -a ", fish_quoted(cat("(__fish_append , ", names_of(spec), ")")));
    case ValueKind::kAny: return " -x";
    case ValueKind::kNone: break;
  }
  return "";
}

std::string fish_completion(const ProgramSpec& program) {
  std::string text = "# fish completion of seer, made by `seer completion fish`\n\ncomplete -c seer -f\n";
  for (const CommandSpec& command : program.commands)
    text += cat("complete -c seer -n __fish_use_subcommand -a ", command.name, " -d ", fish_quoted(command.what), "\n");
  for (const CommandSpec& command : program.commands) {
    const std::string here = cat("complete -c seer -n '__fish_seen_subcommand_from ", command.name, "'");
    if (!command.words.empty()) text += cat(here, " -a ", fish_quoted(spaced(command.words)), "\n");
    for_each_option(command, [&](const OptionSpec& spec) {
      text += cat(here, " -l ", spec.name, fish_value(spec), " -d ", fish_quoted(spec.help), "\n");
    });
  }
  return text;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string shell_completion(const ProgramSpec& program, const std::string& shell) {
  if (shell == "bash") return bash_completion(program);
  if (shell == "zsh") return zsh_completion(program);
  SEER_CHECK(shell == "fish", shell);
  return fish_completion(program);
}

}  // namespace seer
