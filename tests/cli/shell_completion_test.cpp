#include "cli/shell_completion.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("completions: every shell gets the commands, the options and their known values") {
  std::string policy, model;
  bool pin = false;
  ProgramSpec program{.version = "seer 1", .what = "rolls", .commands = {}};
  program.commands.push_back({"run",
                              "it's a run",
                              "",
                              {{"Work",
                                {{"policy", "P", &policy, "which [one]: now", OneOf{{"verl", "seer+"}}},
                                 {"model", "DIR", &model, "a folder"},
                                 {"pin", "", &pin, "pins"}}}}});
  program.commands.push_back({"help", "helps", "", {}, "COMMAND", {"run"}});
  const std::string bash = shell_completion(program, "bash"), zsh = shell_completion(program, "zsh"),
                    fish = shell_completion(program, "fish");
  CHECK(contains(bash, "compgen -W 'run help --help --version'"));
  CHECK(contains(bash, "'run --policy') mapfile -t COMPREPLY < <(compgen -W 'verl seer+'"));
  CHECK(contains(bash, "'run --model') compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d"));
  CHECK(contains(bash, "compgen -W '--policy --model --pin'"));
  CHECK(!contains(bash, "'run --pin')"));
  CHECK(contains(zsh, "'--policy=[which \\[one\\]\\: now]:P:(verl seer+)'"));
  CHECK(contains(zsh, "'run:it'\\''s a run'"));
  CHECK(contains(zsh, "'--pin[pins]'"));
  CHECK(contains(zsh, "'1:COMMAND:(run)'"));
  CHECK(contains(fish, "complete -c seer -n '__fish_seen_subcommand_from run' -l policy -x -a 'verl seer+' -d 'which [one]: now'\n"));
  CHECK(contains(fish, "-a run -d 'it\\'s a run'\n"));
}
