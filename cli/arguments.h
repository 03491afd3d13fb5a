// The words of a command line, read against the commands' option tables. The only code that knows CLI11, and where each of
// its complaints becomes a sentence of ours.
// Used by config.cpp only. Pure.
#pragma once
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "cli/option.h"
#include "protocols/result.h"

namespace seer {

struct ProgramSpec {
  std::string version;
  std::string what;                   // one line
  std::vector<CommandSpec> commands;
};

/// Text to print before leaving: on stdout with exit code 0 (--help, --version, --print-config, completion, man), or on
/// stderr with another.
struct PrintAndExit {
  std::string text;
  int exit_code = 0;
};

/// A command as it was typed; its options are not checked yet.
struct TypedCommand {
  std::string name;
  std::string word;                                        // the word after it, where it takes one
  std::map<std::string, std::vector<std::string>> values;  // by option name, without those that are not given
};

/// Errors: kInvalidArgument, one sentence with the nearest known command or option.
Result<std::variant<PrintAndExit, TypedCommand>> read_arguments(const ProgramSpec& program,
                                                               const std::vector<std::string>& arguments);

/// Moves the typed values to the fields of the command's options. Errors: kInvalidArgument, naming the flag.
Status apply_typed(const CommandSpec& command, const TypedCommand& typed);

/// What --help and the man page say of an option: meaning, known values, default.
std::string help_text(const OptionSpec& spec);
/// Whether one of the options is a size, so that kSizeUnits belongs beside them.
bool has_sizes(const CommandSpec& command);

inline constexpr const char* kHelpOption = "help";  // every command has it; CLI11 answers it
inline constexpr const char* kHelpCommand = "help";

}  // namespace seer
