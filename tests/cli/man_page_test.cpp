#include "cli/man_page.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("man page: it has options, sizes and examples, and no text becomes a roff command") {
  int64_t bytes = 4096;
  bool on = false;
  ProgramSpec program{.version = "seer 1", .what = "rolls", .commands = {}};
  program.commands.push_back({"run",
                              ".starts with a dot",
                              "  seer run --kv-bytes 1M \\\n'quoted'\n",
                              {{"Memory", {{"kv-bytes", "SIZE", SizeField{&bytes}, "KV cache"}, {"pin", "", &on, "a \\ in it"}}}}});
  const std::string page = man_page(program);
  CHECK(page.starts_with(".\\\""));
  CHECK(contains(page, "\n.SS \"seer run [OPTIONS]\"\n\\&.starts with a dot\n"));
  CHECK(contains(page, "\n\\fB\\-\\-kv\\-bytes\\fR \\fISIZE\\fR\nKV cache [4KiB]\n"));
  CHECK(contains(page, "\n\\fB\\-\\-pin\\fR\na \\e in it\n"));
  CHECK(contains(page, "K, M, G, T and KiB"));
  CHECK(contains(page, "\n  seer run \\-\\-kv\\-bytes 1M \\e\n\\&'quoted'\n.fi\n"));
}
