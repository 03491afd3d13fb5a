// Reads a command line with the commands' option tables. The only code that uses CLI11; it turns each CLI11 error into a
// sentence of our own.
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

/// Text to print before the program exits: on stdout with exit code 0 (--help, --version, --print-config, completion, man), on
/// stderr with any other.
struct PrintAndExit {
  std::string text;
  int exit_code = 0;
};

/// A command as typed; its options are not checked yet.
struct TypedCommand {
  std::string name;
  std::string word;                                        // the word after the name, for commands that take one
  std::map<std::string, std::vector<std::string>> values;  // by option name; only options that were typed
};

/// Errors: kInvalidArgument; one sentence, which suggests the nearest command or option.
Result<std::variant<PrintAndExit, TypedCommand>> read_arguments(const ProgramSpec& program,
                                                               const std::vector<std::string>& arguments);

/// Writes the typed values to the fields of the command's options. Errors: kInvalidArgument, naming the flag.
Status apply_typed(const CommandSpec& command, const TypedCommand& typed);

/// What --help and the man page say about an option: its meaning, known values and default.
std::string help_text(const OptionSpec& spec);
/// True if the command has an option that is a size: its help explains the units (kSizeUnits).
bool has_sizes(const CommandSpec& command);

inline constexpr const char* kHelpOption = "help";  // every command has it; CLI11 answers it
inline constexpr const char* kHelpCommand = "help";

}  // namespace seer
