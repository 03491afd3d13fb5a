#include "cli/output_writer.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "cli/scratch.h"

using namespace seer;

TEST_CASE("output: lines are in the partial file at once, in the file only at the end") {
  const ScratchFolder folder;
  folder.write("o.jsonl", "before\n");
  Result<OutputWriter> out = OutputWriter::open(folder.path("o.jsonl"));
  REQUIRE(out.ok());
  CHECK(out->append("one\n").ok());
  CHECK(folder.read("o.jsonl.partial") == "one\n");
  CHECK(folder.read("o.jsonl") == "before\n");
  CHECK(out->append("two\n").ok());
  CHECK(out->finish().ok());
  CHECK(folder.read("o.jsonl") == "one\ntwo\n");
  CHECK(!folder.has("o.jsonl.partial"));
}

TEST_CASE("output: without finish, the file stays as it was and finished lines are kept aside") {
  const ScratchFolder folder;
  folder.write("o.jsonl", "before\n");
  { CHECK(OutputWriter::open(folder.path("o.jsonl")).ok()); }
  CHECK(!folder.has("o.jsonl.partial"));
  {
    Result<OutputWriter> out = OutputWriter::open(folder.path("o.jsonl"));
    REQUIRE(out.ok());
    CHECK(out->append("one\n").ok());
  }
  CHECK(folder.read("o.jsonl") == "before\n");
  CHECK(folder.read("o.jsonl.partial") == "one\n");
}

TEST_CASE("output: a path that cannot be written is refused when it is opened") {
  const ScratchFolder folder;
  CHECK(OutputWriter::open(folder.path("no/o.jsonl")).error().detail ==
        "cannot write " + folder.path("no/o.jsonl") + ".partial: No such file or directory");
  CHECK(OutputWriter::open(folder.path("")).error().detail == "cannot write " + folder.path("") + ": it is a folder");
  CHECK(!OutputWriter::open("/proc/o.jsonl").ok());
}

TEST_CASE("output: lines of an earlier run stay until a new run has a line, and are never taken for a result") {
  const ScratchFolder folder;
  folder.write("o.jsonl.partial", "of an earlier run\n");
  { CHECK(OutputWriter::open(folder.path("o.jsonl")).ok()); }  // a run that failed at its start
  CHECK(folder.read("o.jsonl.partial") == "of an earlier run\n");
  {
    Result<OutputWriter> out = OutputWriter::open(folder.path("o.jsonl"));
    REQUIRE(out.ok());
    CHECK(out->append("one\n").ok());
    CHECK(folder.read("o.jsonl.partial") == "one\n");
  }
  Result<OutputWriter> empty = OutputWriter::open(folder.path("o.jsonl"));
  REQUIRE(empty.ok());
  CHECK(empty->finish().ok());
  CHECK(folder.read("o.jsonl").empty());
  CHECK(!folder.has("o.jsonl.partial"));
}

TEST_CASE("output: it says where its lines are, and how the file is, as the user named it") {
  const ScratchFolder folder;
  const std::string path = folder.path("o.jsonl");
  Result<OutputWriter> out = OutputWriter::open(path);
  REQUIRE(out.ok());
  CHECK(out->left_text() == "there is no " + path);
  CHECK(out->append("one\n").ok());
  CHECK(out->left_text() == "they are in " + path + ".partial, and there is no " + path);
  folder.write("o.jsonl", "before\n");
  CHECK(out->left_text() == "they are in " + path + ".partial, and " + path + " is as it was");
  Result<OutputWriter> device = OutputWriter::open("/dev/null");
  REQUIRE(device.ok());
  CHECK(device->left_text() == "they were written to /dev/null");
  folder.write("p.jsonl", "");
  Result<OutputWriter> dotted = OutputWriter::open(folder.path("./p.jsonl"));
  REQUIRE(dotted.ok());
  CHECK(dotted->left_text() == folder.path("./p.jsonl") + " is as it was");
}

TEST_CASE("output: a path has one writer at a time") {
  const ScratchFolder folder;
  Result<OutputWriter> out = OutputWriter::open(folder.path("o.jsonl"));
  REQUIRE(out.ok());
  CHECK(out->append("one\n").ok());
  CHECK(OutputWriter::open(folder.path("./o.jsonl")).error().detail ==
        "cannot write " + folder.path("./o.jsonl") + ".partial: it is being written already");
  CHECK(out->finish().ok());
  CHECK(folder.read("o.jsonl") == "one\n");
  CHECK(OutputWriter::open(folder.path("o.jsonl")).ok());
}

TEST_CASE("output: a line that does not fit is taken back, and the file is valid to its last line") {
  const ScratchFolder folder;
  Result<OutputWriter> out = OutputWriter::open(folder.path("o.jsonl"));
  REQUIRE(out.ok());
  CHECK(out->append("first\n").ok());
  // A file size limit simulates a full disk: the write stops in the middle of the line.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const Status full = out->append("a line longer than that\n");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  REQUIRE(!full.ok());
  CHECK(full.error().detail == "cannot write " + folder.path("o.jsonl") + ".partial: File too large");
  CHECK(folder.read("o.jsonl.partial") == "first\n");
  CHECK(out->append("second\n").ok());
  CHECK(out->finish().ok());
  CHECK(folder.read("o.jsonl") == "first\nsecond\n");
}

TEST_CASE("output: a link is followed, a device is written directly") {
  const ScratchFolder folder;
  folder.write("real.jsonl", "before\n");
  REQUIRE(::symlink("real.jsonl", folder.path("link.jsonl").c_str()) == 0);
  Result<OutputWriter> link = OutputWriter::open(folder.path("link.jsonl"));
  REQUIRE(link.ok());
  CHECK(link->append("one\n").ok());
  CHECK(link->finish().ok());
  CHECK(folder.read("real.jsonl") == "one\n");
  CHECK(std::filesystem::is_symlink(folder.path("link.jsonl")));

  Result<OutputWriter> device = OutputWriter::open("/dev/null");
  REQUIRE(device.ok());
  CHECK(device->append("one\n").ok());
  CHECK(device->finish().ok());
  CHECK(std::filesystem::is_character_file("/dev/null"));
}

TEST_CASE("output: a writer that was moved from leaves the file to its new owner") {
  const ScratchFolder folder;
  Result<OutputWriter> first = OutputWriter::open(folder.path("o.jsonl"));
  REQUIRE(first.ok());
  OutputWriter second = *std::move(first);
  CHECK(second.append("one\n").ok());
  Result<OutputWriter> other = OutputWriter::open(folder.path("p.jsonl"));
  REQUIRE(other.ok());
  second = *std::move(other);
  CHECK(folder.read("o.jsonl.partial") == "one\n");
  CHECK(second.finish().ok());
  CHECK(folder.has("p.jsonl"));
}

TEST_CASE("output: a file that is read is refused for writing by any of its names, a device is not") {
  const ScratchFolder folder;
  const std::string in = folder.write("in.jsonl", "{}\n");
  std::filesystem::create_symlink(in, folder.path("link.jsonl"));
  for (const std::string& out : {in, folder.path("./in.jsonl"), folder.path("link.jsonl")}) {
    const Status status = check_two_files("--out", out, "--in", in);
    REQUIRE(!status.ok());
    CHECK(status.error().code == Code::kInvalidArgument);
    CHECK(status.error().detail == cat("--out and --in both name ", out, ": expected two files"));
  }
  CHECK(check_two_files("--out", folder.path("new.jsonl"), "--in", in).ok());
  CHECK(check_two_files("--out", folder.write("other.jsonl", "{}\n"), "--in", in).ok());
  CHECK(check_two_files("--out", "", "--in", in).ok());
  CHECK(check_two_files("--out", "/dev/null", "--in", "/dev/null").ok());
}
