// The real RocksDB, on the disk of the build folder. Left out with the history if RocksDB is not installed.
#if defined(SEER_HAVE_ROCKSDB)
#include "storage/rocksdb_response_history.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>

using namespace seer;
namespace fs = std::filesystem;

namespace {

using Responses = std::vector<std::vector<int32_t>>;

struct TempDir {
  TempDir() {
    std::string name = (fs::temp_directory_path() / "seer_history_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path); }
  std::string path;
};

PrefixHash prompt(uint64_t n) { return extend_prefix({}, std::vector<int32_t>{static_cast<int32_t>(n), 7}); }

Responses random_responses(uint64_t seed, size_t count, size_t tokens, int32_t vocab = 150'000) {
  std::mt19937_64 random(seed);
  Responses responses(count, std::vector<int32_t>(tokens));
  for (auto& response : responses)
    for (int32_t& token : response) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return responses;
}

std::unique_ptr<ResponseHistory> open(RocksdbResponseHistoryConfig config) {
  auto history = open_rocksdb_response_history(config);
  REQUIRE_MESSAGE(history.ok(), (history.ok() ? "" : history.error().detail));
  return std::move(*history);
}
Status put(ResponseHistory& history, PrefixHash of, uint64_t iteration, Responses responses) {
  std::promise<Status> promise;
  REQUIRE(history.put(of, iteration, std::move(responses), [&](Status s) { promise.set_value(std::move(s)); }).ok());
  return promise.get_future().get();
}
std::vector<PastResponse> get(ResponseHistory& history, PrefixHash of, int64_t tokens_max = 1 << 30) {
  std::promise<Result<std::vector<PastResponse>>> promise;
  REQUIRE(history.get(of, tokens_max, [&](auto found) { promise.set_value(std::move(found)); }).ok());
  auto found = promise.get_future().get();
  REQUIRE(found.ok());
  return std::move(*found);
}
Responses tokens_of(const std::vector<PastResponse>& found) {
  Responses all;
  for (const auto& response : found) all.push_back(response.tokens);
  return all;
}
std::vector<uint64_t> iterations_of(const std::vector<PastResponse>& found) {
  std::vector<uint64_t> all;
  for (const auto& response : found) all.push_back(response.iteration);
  return all;
}

/// The largest of the database's files of records.
std::string largest_table(const std::string& dir) {
  std::string largest;
  uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir))
    if (entry.path().extension() == ".sst" && entry.file_size() > bytes) {
      bytes = entry.file_size();
      largest = entry.path();
    }
  REQUIRE(!largest.empty());
  return largest;
}
void flip_bit(const std::string& file, off_t at) {
  const int fd = ::open(file.c_str(), O_RDWR);
  char byte = 0;
  REQUIRE(::pread(fd, &byte, 1, at) == 1);
  byte = static_cast<char>(byte ^ 1);
  REQUIRE(::pwrite(fd, &byte, 1, at) == 1);
  ::close(fd);
}

constexpr size_t kWriterTokens = 3000;
Responses written(uint64_t n) { return random_responses(n, 4, kWriterTokens); }

}  // namespace

TEST_CASE("response history: responses come back newest iteration first, also after the directory is opened again") {
  TempDir dir;
  const Responses first = random_responses(1, 3, 1000), second = random_responses(2, 2, 500),
                  other = {{}, {0}, {127, 128, 16383, 16384, std::numeric_limits<int32_t>::max() - 1}};
  {
    auto history = open({.dir = dir.path});
    CHECK(put(*history, prompt(1), 5, second).ok());
    CHECK(put(*history, prompt(1), 4, first).ok());  // late
    CHECK(put(*history, prompt(2), 4, other).ok());
  }
  auto history = open({.dir = dir.path});
  const auto found = get(*history, prompt(1));
  CHECK(iterations_of(found) == std::vector<uint64_t>{5, 5, 4, 4, 4});
  CHECK(tokens_of(found) == Responses{second[0], second[1], first[0], first[1], first[2]});
  CHECK(tokens_of(get(*history, prompt(2))) == other);
  CHECK(get(*history, prompt(3)).empty());
  CHECK(history->stats().prompts == 2);
  CHECK(history->stats().skipped_records == 0);

  const auto part = get(*history, prompt(1), 1200);
  REQUIRE(part.size() == 3);
  CHECK(part[2].tokens == std::vector<int32_t>(first[0].begin(), first[0].begin() + 200));
  CHECK(get(*history, prompt(1), 0).empty());
}

TEST_CASE("response history: the newest responses of a prompt are kept, cut to size, and a new put of an iteration replaces it") {
  TempDir dir;
  auto history = open({.dir = dir.path, .responses_max = 5, .response_tokens_max = 100});
  std::vector<Responses> puts;
  for (uint64_t i = 0; i < 4; ++i) {
    puts.push_back(random_responses(i, 2, 150));
    CHECK(put(*history, prompt(1), i, puts.back()).ok());
  }
  const auto cut = [](std::vector<int32_t> tokens) {
    tokens.resize(100);
    return tokens;
  };
  auto found = get(*history, prompt(1));
  CHECK(iterations_of(found) == std::vector<uint64_t>{3, 3, 2, 2, 1});
  CHECK(found[4].tokens == cut(puts[1][0]));
  const int64_t used_bytes = history->stats().used_bytes;
  CHECK(put(*history, prompt(1), 2, {puts[0][0], puts[0][1]}).ok());
  found = get(*history, prompt(1));
  CHECK(iterations_of(found) == std::vector<uint64_t>{3, 3, 2, 2, 1});
  CHECK(found[2].tokens == cut(puts[0][0]));
  CHECK(std::abs(history->stats().used_bytes - used_bytes) < 50);  // varints of other tokens
  CHECK(put(*history, prompt(1), 9, random_responses(9, 8, 10)).ok());
  CHECK(iterations_of(get(*history, prompt(1))) == std::vector<uint64_t>(5, 9));
  CHECK(put(*history, prompt(1), 1, puts[1]).ok());  // older than all that stays
  CHECK(iterations_of(get(*history, prompt(1))) == std::vector<uint64_t>(5, 9));
}

TEST_CASE("response history: a prompt without responses takes no space") {
  TempDir dir;
  auto history = open({.dir = dir.path});
  CHECK(put(*history, prompt(1), 1, {}).ok());
  CHECK(put(*history, prompt(2), 1, {{1, 2}}).ok());
  CHECK(put(*history, prompt(2), 1, {}).ok());
  CHECK(history->stats().prompts == 0);
  CHECK(history->stats().used_bytes == 0);
  CHECK(get(*history, prompt(2)).empty());
  CHECK(put(*history, prompt(2), 2, {{3}}).ok());
  CHECK(tokens_of(get(*history, prompt(2))) == Responses{{3}});
}

TEST_CASE("response history: above its limit, the prompts put longest ago are dropped, also when it is opened") {
  TempDir dir;
  const int64_t prompt_bytes = 4 * (1000 * 3 + 19);  // at most
  const auto has = [](ResponseHistory& history, uint64_t n) { return !get(history, prompt(n)).empty(); };
  {
    auto history = open({.dir = dir.path, .bytes_max = 5 * prompt_bytes});
    for (uint64_t n = 0; n < 5; ++n) CHECK(put(*history, prompt(n), 1, random_responses(n, 4, 1000)).ok());
    CHECK(history->stats().dropped_prompts == 0);
    CHECK(put(*history, prompt(0), 2, random_responses(10, 4, 1000)).ok());  // the oldest is now 1: no longer 0
    CHECK(history->stats().used_bytes > 5 * prompt_bytes * 9 / 10);
    CHECK(history->stats().dropped_prompts == 1);
    for (uint64_t n = 5; n < 7; ++n) CHECK(put(*history, prompt(n), 2, random_responses(n, 4, 1000)).ok());
    for (uint64_t n = 0; n < 7; ++n) {
      CAPTURE(n);
      CHECK(has(*history, n) == (n == 0 || n > 3));
      if (n >= 4) CHECK(tokens_of(get(*history, prompt(n))) == random_responses(n, 4, 1000));
    }
    CHECK(history->stats().used_bytes <= 5 * prompt_bytes);
  }
  auto history = open({.dir = dir.path, .bytes_max = 2 * prompt_bytes});
  CHECK(history->stats().prompts == 2);
  CHECK(has(*history, 5));
  CHECK(has(*history, 6));
  CHECK(put(*history, prompt(9), 1, random_responses(9, 16, 1000)).ok());  // alone above the cap
  CHECK(history->stats().used_bytes <= 2 * prompt_bytes);
  CHECK(get(*history, prompt(9)).size() >= 7);
}

TEST_CASE("response history: a flipped bit on disk costs the responses there, and the others come back") {
  TempDir dir;
  const Responses responses = random_responses(1, 16, 20'000);
  {
    auto history = open({.dir = dir.path});
    CHECK(put(*history, prompt(1), 1, responses).ok());
  }
  open({.dir = dir.path}).reset();  // now it lies in a table
  const std::string table = largest_table(dir.path);
  flip_bit(table, static_cast<off_t>(fs::file_size(table) / 2));
  auto history = open({.dir = dir.path});
  const Responses found = tokens_of(get(*history, prompt(1)));
  CHECK(found.size() >= 12);
  CHECK(found.size() < 16);
  CHECK(history->stats().skipped_records == static_cast<int64_t>(16 - found.size()));
  for (const auto& tokens : found) CHECK(std::find(responses.begin(), responses.end(), tokens) != responses.end());
}

TEST_CASE("response history: responses with tokens of a larger vocabulary are skipped and counted") {
  TempDir dir;
  {
    auto history = open({.dir = dir.path});
    CHECK(put(*history, prompt(1), 1, {{1, 2, 999}, {1, 2, 1000}}).ok());
  }
  auto history = open({.dir = dir.path, .vocab_tokens = 1000});
  CHECK(tokens_of(get(*history, prompt(1))) == Responses{{1, 2, 999}});
  CHECK(history->stats().skipped_records == 1);
}

TEST_CASE("response history: a directory that is in use, unreadable or of others is refused with a sentence that names it") {
  TempDir dir;
  const std::string used = dir.path + "/used", damaged = dir.path + "/damaged", foreign = dir.path + "/foreign";
  const auto expect = [](const std::string& path, Code code) {
    const auto refused = open_rocksdb_response_history({.dir = path});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == code);
    CHECK(refused.error().detail.find(path) != std::string::npos);
  };
  const auto history = open({.dir = used});
  expect(used, Code::kUnavailable);
  fs::create_directories(foreign);
  std::ofstream(foreign + "/thesis.tex") << "mine";
  expect(foreign, Code::kInvalidArgument);
  open({.dir = damaged}).reset();
  std::ofstream(damaged + "/db/CURRENT") << "nonsense";
  expect(damaged, Code::kIo);
  expect("/proc/seer_history", Code::kIo);
}

TEST_CASE("response history: beyond queue_max operations are refused, and every accepted one is answered") {
  TempDir dir;
  auto history = open({.dir = dir.path, .queue_max = 4});
  std::promise<void> go;
  std::atomic<int> answered{0};
  // The first answer holds the thread up until all have been asked.
  REQUIRE(history->get(prompt(1), 1, [&, held = go.get_future().share()](auto) {
    held.wait();
    ++answered;
  }).ok());
  int accepted = 1;
  for (uint64_t i = 0; i < 10; ++i) {
    const Status s = history->put(prompt(i), 1, {{1, 2, 3}}, [&](Status) { ++answered; });
    if (s.ok()) ++accepted;
    if (!s.ok()) CHECK(s.error().code == Code::kFull);
  }
  CHECK(accepted == 4);
  CHECK(history->stats().refused == 7);
  go.set_value();
  history.reset();  // answers what is queued
  CHECK(answered == accepted);
}

TEST_CASE("response history: a writer for the test below, in a process of its own" * doctest::skip()) {
  const char* dir = std::getenv("SEER_TEST_HISTORY_DIR");
  REQUIRE(dir != nullptr);
  auto history = open({.dir = dir});
  for (uint64_t n = 0; n < 1'000'000; ++n) {  // until it is killed
    REQUIRE(put(*history, prompt(n % 200), n, written(n)).ok());
    REQUIRE(::write(STDOUT_FILENO, &n, sizeof(n)) == sizeof(n));
  }
}

TEST_CASE("response history: puts answered before kill -9 are there when the directory is opened again") {
  TempDir dir;
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  REQUIRE(::setenv("SEER_TEST_HISTORY_DIR", dir.path.c_str(), 1) == 0);
  std::string program = fs::read_symlink("/proc/self/exe"), no_skip = "--no-skip", minimal = "--minimal",
              name = "--test-case=response history: a writer for the test below*";
  char* argv[] = {program.data(), no_skip.data(), minimal.data(), name.data(), nullptr};
  pid_t writer = 0;
  REQUIRE(::posix_spawn(&writer, program.c_str(), &files, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&files);
  ::close(out[1]);

  uint64_t last = 0;
  const auto read_one = [&] { return ::read(out[0], &last, sizeof(last)) == sizeof(last); };
  while (last < 500) REQUIRE(read_one());
  const auto in_use = open_rocksdb_response_history({.dir = dir.path});
  REQUIRE_FALSE(in_use.ok());
  CHECK(in_use.error().code == Code::kUnavailable);
  REQUIRE(::kill(writer, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(writer, &status, 0) == writer);
  CHECK(WIFSIGNALED(status));
  while (read_one()) {
  }
  ::close(out[0]);

  auto history = open({.dir = dir.path});
  CHECK(history->stats().prompts == 200);
  for (uint64_t n = 0; n < 200; ++n) {
    // The last put of the prompt that was answered, or one behind it, and those before.
    const auto found = get(*history, prompt(n));
    const uint64_t newest = last - (last + 200 - n) % 200;
    REQUIRE(found.size() >= 4);
    CHECK(found[0].iteration >= newest);
    CHECK(found[0].iteration <= last + 1);
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i].tokens == written(found[i].iteration)[i % 4]);
  }
  CHECK(history->stats().skipped_records == 0);
  CHECK(put(*history, prompt(1), last + 1000, {{1}}).ok());
}
#endif
