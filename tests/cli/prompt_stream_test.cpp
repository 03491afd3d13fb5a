#include "cli/prompt_stream.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include "protocols/check.h"

using namespace seer;

namespace {

struct Pipe {
  Pipe() { REQUIRE(::pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    close();
  }
  void write(const std::string& text) const {
    REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void close() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  int ends[2];
};

/// The prompts of take(), or its error.
std::vector<std::string> taken(PromptStream& stream) {
  const auto prompts = stream.take();
  if (!prompts.ok()) return {prompts.error().detail};
  std::vector<std::string> texts;
  for (const PromptLine& p : *prompts) texts.push_back(cat(p.line, " ", p.prompt));
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("prompt stream: prompts are taken as their lines end, and never waited for") {
  Pipe pipe;
  PromptStream stream(pipe.ends[0], "stdin", 0, {});
  CHECK(taken(stream) == Texts{});
  pipe.write("{\"prompt\": \"a\"}\n\n{\"prom");
  CHECK(taken(stream) == Texts{"1 a"});
  CHECK(taken(stream) == Texts{});
  pipe.write("pt\": \"b\"}\n{\"prompt\": \"c\"}\n");
  CHECK(taken(stream) == Texts{"3 b", "4 c"});
  CHECK_FALSE(stream.ended());
  pipe.close();
  CHECK(taken(stream) == Texts{});
  CHECK(stream.ended());
}

TEST_CASE("prompt stream: the last line may lack its newline, but must be complete") {
  for (const bool whole : {true, false}) {
    Pipe pipe;
    PromptStream stream(pipe.ends[0], "stdin", 0, {});
    pipe.write(cat("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"", whole ? "}" : ""));
    pipe.close();
    if (whole) {
      CHECK(taken(stream) == Texts{"1 a", "2 b"});
      CHECK(stream.ended());
      continue;
    }
    CHECK(taken(stream) == Texts{"1 a"});
    CHECK_FALSE(stream.ended());
    CHECK(taken(stream) ==
          Texts{"stdin:2: expected a JSON object and a newline, but the stream ends in the middle of this line"});
    CHECK(stream.ended());
  }
}

TEST_CASE("prompt stream: a wrong line is named after the prompts before it were given, and ends the stream") {
  Pipe pipe;
  PromptStream stream(pipe.ends[0], "stdin", 0, {});
  pipe.write("{\"prompt\": \"a\", \"id\": 1}\n{\"prompt\": \"b\", \"id\": 1}\n{\"prompt\": \"c\"}\n");
  CHECK(taken(stream) == Texts{"1 a"});
  CHECK(taken(stream) == Texts{"stdin:2: id 1 is that of line 1 already"});
  CHECK(stream.ended());
}

TEST_CASE("prompt stream: it ends with the limit, whatever else comes") {
  Pipe pipe;
  PromptStream stream(pipe.ends[0], "stdin", 2, {});
  pipe.write("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n");
  CHECK(taken(stream) == Texts{"1 a", "2 b"});
  CHECK(stream.ended());
}
