#include "cli/json_lines.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

namespace {

using Lines = std::vector<std::pair<int64_t, std::string>>;

/// The lines of a file, up to an error.
Lines lines_of(const std::string& path, Status* status = nullptr) {
  Lines lines;
  const Status read = for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    lines.emplace_back(line, text);
    return true;
  });
  if (status) *status = read;
  else REQUIRE_MESSAGE(read.ok(), read.error().detail);
  return lines;
}

std::string error_of(const std::string& path) {
  Status status;
  lines_of(path, &status);
  return status.ok() ? "" : status.error().detail;
}

/// "name=text;..." of the members of a line.
std::string members_of(const std::string& text) {
  const auto members = json_members("p.jsonl", 7, text);
  REQUIRE_MESSAGE(members.ok(), members.error().detail);
  std::string all;
  for (const JsonMember& member : *members) all += member.name + "=" + member.text + ";";
  return all;
}

}  // namespace

TEST_CASE("json lines: blank lines are left out, and the others keep their numbers") {
  const ScratchFolder folder;
  CHECK(lines_of(folder.write("p.jsonl", "{}\n\n \t\r\n{\"a\":1}\r\nlast")) ==
        Lines{{1, "{}"}, {4, "{\"a\":1}\r"}, {5, "last"}});
  CHECK(lines_of(folder.write("p.jsonl", "")).empty());
  CHECK(lines_of(folder.write("p.jsonl", "\xef\xbb\xbf{}\n\xef\xbb\xbf")) == Lines{{1, "{}"}, {2, "\xef\xbb\xbf"}});
}

TEST_CASE("json lines: reading ends when the reader has enough or finds an error") {
  const ScratchFolder folder;
  const std::string file = folder.write("p.jsonl", "1\n2\n3\n");
  int64_t last = 0;
  CHECK(for_each_line(file, [&](int64_t line, const std::string&) -> Result<bool> { return (last = line) < 2; }).ok());
  CHECK(last == 2);
  const Status failed = for_each_line(file, [&](int64_t line, const std::string&) -> Result<bool> {
    last = line;
    return fail(Code::kStale, "no");
  });
  REQUIRE(!failed.ok());
  CHECK(failed.error().code == Code::kStale);
  CHECK(last == 1);
}

TEST_CASE("json lines: lines longer than one read are whole") {
  const ScratchFolder folder;
  for (const size_t size : {size_t{65500}, size_t{65534}, size_t{65535}, size_t{65536}, size_t{200'000}}) {
    CAPTURE(size);
    const std::string line(size, 'x');
    for (const char* end : {"", "\n", "\nnext\n"}) {
      const Lines lines = lines_of(folder.write("p.jsonl", line + end));
      REQUIRE(!lines.empty());
      CHECK(lines[0].second == line);
      CHECK(lines.size() == (std::string_view(end).size() > 1 ? 2 : 1));
    }
  }
}

TEST_CASE("json lines: a file in another format is named as what it is") {
  using namespace std::string_literals;
  const ScratchFolder folder;
  const auto said = [&](const std::string& bytes) {
    const std::string file = folder.write("p.jsonl", bytes);
    const std::string error = error_of(file);
    return error.empty() ? "" : error.substr(file.size());
  };
  CHECK(said("\x1f\x8b\x08xyz") == " is gzip-compressed: unpack it first");
  CHECK(said("PK\x03\x04xyz\n") == " is a zip archive: unpack it first");
  CHECK(said("\x28\xb5\x2f\xfdxyz") == " is zstd-compressed: unpack it first");
  CHECK(said("PAR1xyz") == " is a Parquet file: write it as JSON Lines first");
  CHECK(said("\xff\xfe{\0\"\0"s) == " is UTF-16: convert it to UTF-8 first");
  CHECK(said("\xfe\xff\0{\0\""s) == " is UTF-16: convert it to UTF-8 first");
  CHECK(said("{\0\"\0"s) == " is UTF-16: convert it to UTF-8 first");
  CHECK(said("{}\nPK\x03\x04") == "");  // a file is known by its first bytes
  CHECK(error_of(folder.path("")) == "cannot read " + folder.path("") + ": it is a folder, expected a file of JSON Lines");
  CHECK(error_of(folder.path("none.jsonl")) == "cannot read " + folder.path("none.jsonl") + ": No such file or directory");
  CHECK(error_of("/dev/zero") == "/dev/zero:1: the line is longer than 64 MiB: expected a JSON object per line");
}

TEST_CASE("json lines: members come in their order, as compact JSON with numbers as they were written") {
  CHECK(members_of(" { \"b\" : 12345678901234567890123 , \"a\": [1e400, 1.0,0.10,-0 ,1E+2] } ") ==
        "b=12345678901234567890123;a=[1e400,1.0,0.10,-0,1E+2];");
  CHECK(members_of("{\"c\": {\"d\": {}, \"e\": [], \"f\": [[null], true], \"g\": {\"h\": false}}}") ==
        "c={\"d\":{},\"e\":[],\"f\":[[null],true],\"g\":{\"h\":false}};");
  CHECK(members_of("{\"t\": \"a\\u00e9 \\\"b\\\" \\n\"}") == "t=\"a\xc3\xa9 \\\"b\\\" \\n\";");
  CHECK(members_of("{}") == "");
}

TEST_CASE("json lines: a line that is not a JSON object with distinct names is refused with its place, by both readers") {
  const struct {
    const char* text;
    const char* error;
  } table[] = {
      {"{\"prompt\": \"b\", }", "p.jsonl:7:17: malformed JSON after \"prompt\": \"b\", }"},
      {"{\"prompt\": \"a", "p.jsonl:7:14: malformed JSON: the line ends too early"},
      {"{\"prompt\": \"\xff\"}", "p.jsonl:7:13: the text is not UTF-8"},
      {"nonsense", "p.jsonl:7:2: malformed JSON after no"},
      {"{\"x\": 1e5000}", "p.jsonl:7:12: the number 1e5000 is too large"},
      {"{\"x\": 1, \"x\": 2}", "p.jsonl:7: field x is given twice"},
      {"{\"x\": [{\"y\": 1, \"y\": 1}]}", "p.jsonl:7: field y is given twice"},
      {"[1]", "p.jsonl:7: expected a JSON object, found array"},
      {"3", "p.jsonl:7: expected a JSON object, found number"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.text));
    const auto members = json_members("p.jsonl", 7, row.text);
    const Status checked = check_object("p.jsonl", 7, row.text);
    REQUIRE(!members.ok());
    REQUIRE(!checked.ok());
    CHECK(members.error().detail == row.error);
    CHECK(checked.error().detail == row.error);
  }
  CHECK(check_object("p.jsonl", 7, "{\"x\": {\"y\": 1}, \"z\": {\"y\": 1}}").ok());  // in different objects
}

TEST_CASE("json lines: nesting deeper than a reader can follow is refused") {
  const auto nested = [](size_t depth) { return "{\"x\": " + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}"; };
  CHECK(check_object("p.jsonl", 7, nested(1000)).ok());
  for (const size_t depth : {1001, 100'000})
    CHECK(check_object("p.jsonl", 7, nested(depth)).error().detail == "p.jsonl:7: lists and objects are nested deeper than 1000");
}

TEST_CASE("json lines: text becomes a JSON string; bytes that are no UTF-8 are replaced, all other text stays") {
  CHECK(json_string("tab\there \"q\" \\ \n\xc3\xa9") == "\"tab\\there \\\"q\\\" \\\\ \\n\xc3\xa9\"");
  const struct {
    std::string text, inside;
  } table[] = {
      {"\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"a\xe2\x82", "a\xef\xbf\xbd"},                            // cut inside a character
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                  // overlong
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // surrogate
      {"\xf4\x90\x80\x80z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"},
      {std::string("\0", 1), "\\u0000"},
  };
  for (const auto& row : table) CHECK(json_string(row.text) == "\"" + row.inside + "\"");
}

TEST_CASE("json lines: a message shows 60 bytes of a text at most, and no half of a character") {
  CHECK(shown(std::string(60, 'x')) == std::string(60, 'x'));
  CHECK(shown(std::string(61, 'x')) == std::string(57, 'x') + "...");
  CHECK(shown(std::string(56, 'x') + "\xc3\xa9" + std::string(9, 'x')) == std::string(56, 'x') + "...");
}
