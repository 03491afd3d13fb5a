#include "cli/man_page.h"

#include <sstream>

namespace seer {
namespace {

/// Escapes a line of text: '-' would become a typographic hyphen, '\' starts a command, and so does '.' or a quote at the beginning.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

/// The argument of a macro, in quotes.
std::string heading(std::string_view text) {
  std::string out = "\"";
  for (const char c : roff(text)) out += c == '"' ? std::string("\\(dq") : std::string(1, c);
  return out + "\"";
}

std::string synopsis(const CommandSpec& command) {
  const std::string options = command.options.empty() ? "" : " [OPTIONS]";
  return cat("seer ", command.name, options, command.word.empty() ? "" : cat(" [", command.word, "]"));
}

std::string option_entry(const OptionSpec& spec) {
  const std::string value = spec.value.empty() ? "" : cat(" \\fI", roff(spec.value), "\\fR");
  return cat(".TP\n\\fB", roff("--" + spec.name), "\\fR", value, "\n", roff(help_text(spec)), "\n");
}

/// Lines that are printed unchanged; nothing for an empty text.
std::string verbatim(const std::string& text) {
  if (text.empty()) return "";
  std::string out = ".P\n.nf\n";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out += roff(line) + "\n";
  return out + ".fi\n";
}

std::string command_section(const CommandSpec& command) {
  std::string text = cat(".SS ", heading(synopsis(command)), "\n", roff(command.what), "\n");
  if (!command.words.empty()) text += cat(".P\n", roff(cat(command.word, ": one of ", joined(command.words))), "\n");
  for (const OptionGroup& group : command.options) {
    text += cat(".P\n\\fI", roff(group.title), "\\fR\n");
    for (const OptionSpec& spec : group.options) text += option_entry(spec);
  }
  if (has_sizes(command)) text += cat(".P\n", roff(kSizeUnits), "\n");
  for (const std::string* lines : {&command.notes, &command.examples}) text += verbatim(*lines);
  return text;
}

constexpr const char* kExitStatus = R"(.SH "EXIT STATUS"
.TP
0
done
.TP
1
failed: a file, the machine, or a part that this build does not have
.TP
2
wrong options or input
.TP
130
stopped on request; what was finished is kept
)";

}  // namespace

std::string man_page(const ProgramSpec& program) {
  const std::string& about = program.what;
  std::string text = cat(".\\\" made by `seer man`\n.TH SEER 1 \"\" ", heading(program.version), " \"User Commands\"\n.SH NAME\nseer \\- ",
                         roff(about), "\n.SH SYNOPSIS\n.nf\n");
  for (const CommandSpec& command : program.commands) text += roff(synopsis(command)) + "\n";
  text += "seer \\-\\-version\n.fi\n.SH COMMANDS\n";
  for (const CommandSpec& command : program.commands) text += command_section(command);
  return text + kExitStatus;
}

}  // namespace seer
