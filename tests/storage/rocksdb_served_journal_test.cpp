#ifdef SEER_HAVE_ROCKSDB
#include <doctest/doctest.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>

#include "cli/scratch.h"
#include "storage/served_journal.h"

using namespace seer;

namespace {

const ServedModelMark kMark{.model = "qwen", .weights = 5, .version = WeightVersion{3}, .endings = "EOS 2", .tokenizer = 8};

std::unique_ptr<ServedJournal> opened(const ScratchFolder& folder, const ServedModelMark& mark = kMark) {
  auto journal = ServedJournal::open(folder.path("journal"), mark);
  REQUIRE_MESSAGE(journal.ok(), journal.error().detail);
  return *std::move(journal);
}
ServedGroup group(std::vector<int32_t> prompt_ids) {
  return {.id = "\"x\"", .carried = "\"a\":1", .prompt_ids = std::move(prompt_ids), .sampling = {.max_tokens = 9}, .seeds = {1, 2}};
}
CommittedTokens part(uint32_t group, uint32_t sample, int64_t first, std::vector<int32_t> tokens) {
  const std::vector<float> logprobs(tokens.size(), -0.5f);
  return {{GroupId{group}, sample}, first, {std::move(tokens), logprobs}};
}

}  // namespace

TEST_CASE("served journal: rollouts, groups, responses and tokens are there when it is opened again, each with its own rollout") {
  const ScratchFolder folder;
  {
    const auto journal = opened(folder);
    CHECK(journal->add({.number = 1, .id = "a", .sampling = {}}, 0, {group({1}), group({2})}).ok());
    CHECK(journal->add({.number = 0x1ff, .id = "b", .seed = 7, .sampling = {}, .is_open = true}, 0, {group({3})}).ok());
    CHECK(journal->add({.number = 1, .id = "a", .sampling = {}, .expected_label = "12", .expected_version = WeightVersion{12}}, 2, {group({4})}).ok());
    CHECK(journal->reopen().ok());
    for (uint64_t seq = 1; seq <= 300; ++seq) CHECK(journal->finish(1, {{.seq = seq, .group = 0, .sample = 1, .line = "l\n"}}).ok());
    CHECK(journal->commit(1, part(2, 0, 0, {1, 2}), kMark.version).ok());
    CHECK(journal->commit(1, part(2, 0, 1, {2, 3}), kMark.version).ok());
    CHECK(journal->commit(1, part(2, 0, 7, {9}), kMark.version).ok());  // after a gap
    CHECK(journal->commit(1, part(2, 1, 0, {4}), kMark.version).ok());
    CHECK(journal->commit(0x1ff, part(0, 0, 0, {5}), kMark.version).ok());
    CHECK(journal->commit(0x1ff, part(0, 1, 0, {6}), WeightVersion{4}).ok());
    CHECK(journal->finish(1, {{.seq = 301, .group = 2, .sample = 1, .version = kMark.version, .line = "m\n"}}).ok());
    const ServedHead after{.number = 1, .id = "a", .sampling = {}, .acknowledged = 1, .expected_label = "12", .expected_version = WeightVersion{12}};
    CHECK(journal->acknowledge(after, {{.seq = 1, .group = 0, .sample = 1, .line = "l\n"}}).ok());
  }
  const auto journal = opened(folder);
  const ServedContents had = journal->read().value();
  REQUIRE(had.rollouts.size() == 2);
  const ServedContents::Rollout &a = had.rollouts[0], &b = had.rollouts[1];
  CHECK(a.head.id == "a");
  CHECK(a.head.acknowledged == 1);
  CHECK(a.head.expected_label == "12");
  CHECK(a.head.expected_version == WeightVersion{12});
  REQUIRE(a.groups.size() == 3);
  CHECK(a.groups[2].prompt_ids == std::vector{4});
  CHECK(a.groups[2].sampling.max_tokens == 9);
  REQUIRE(a.responses.size() == 301);
  for (size_t i = 0; i < a.responses.size(); ++i) CHECK(a.responses[i].seq == i + 1);
  CHECK(a.responses[0].line.empty());
  CHECK(a.responses[300].line == "m\n");
  REQUIRE(a.begun.size() == 1);
  CHECK(a.begun[0].output.ids == std::vector{1, 2, 3});
  CHECK(b.head.is_open);
  CHECK(b.head.seed == 7);
  REQUIRE(b.begun.size() == 1);
  CHECK(b.begun[0].request.sample == 0);
  CHECK(journal->forget(1).ok());
  CHECK(journal->read()->rollouts.size() == 1);
}

TEST_CASE("served journal: of a response that starts anew, or goes on from an earlier token, no later tokens of before are left") {
  const ScratchFolder folder;
  const auto journal = opened(folder);
  CHECK(journal->add({.number = 1, .id = "a", .sampling = {}}, 0, {group({1})}).ok());
  for (const uint32_t sample : {0, 1})
    for (const int64_t first : {0, 2, 4}) CHECK(journal->commit(1, part(0, sample, first, {7, 7}), kMark.version).ok());
  CHECK(journal->commit(1, part(0, 0, 0, {8, 8}), kMark.version).ok());
  CHECK(journal->commit(1, part(0, 1, 1, {8, 8}), kMark.version).ok());
  const ServedContents had = journal->read().value();
  REQUIRE(had.rollouts[0].begun.size() == 2);
  CHECK(had.rollouts[0].begun[0].output.ids == std::vector{8, 8});
  CHECK(had.rollouts[0].begun[1].output.ids == std::vector{7, 8, 8});
}

TEST_CASE("served journal: groups that are added from a number on replace those that were there from it on") {
  const ScratchFolder folder;
  const auto journal = opened(folder);
  for (const uint64_t number : {1, 2}) CHECK(journal->add({.number = number, .id = cat(number), .sampling = {}}, 0, {group({1}), group({2}), group({3})}).ok());
  CHECK(journal->add({.number = 1, .id = "1", .sampling = {}}, 1, {group({4})}).ok());
  const auto groups = [&](size_t rollout) { return journal->read()->rollouts.at(rollout).groups; };
  REQUIRE(groups(0).size() == 2);
  CHECK(groups(0)[0].prompt_ids == std::vector{1});
  CHECK(groups(0)[1].prompt_ids == std::vector{4});
  CHECK(journal->add({.number = 1, .id = "1", .sampling = {}}, 1, {}).ok());
  CHECK(groups(0).size() == 1);
  CHECK(groups(1).size() == 3);
}

TEST_CASE("served journal: tokens of other weights are dropped, and another model's journal is refused") {
  const ScratchFolder folder;
  CHECK(opened(folder)->add({.number = 1, .id = "a", .sampling = {}}, 0, {group({1})}).ok());
  for (const ServedModelMark& mark : {ServedModelMark{"qwen", 6, WeightVersion{3}, "EOS 2", 8}, {"qwen", 6, WeightVersion{4}, "EOS 2", 8}, {"qwen", 5, WeightVersion{3}, "EOS 2 7", 8}, {"qwen", 5, WeightVersion{3}, "EOS 2", 9}}) {
    CHECK(opened(folder, mark)->commit(1, part(0, 0, 0, {1}), mark.version).ok());
    CHECK(opened(folder, mark)->read()->rollouts[0].begun.size() == 1);
    CHECK(opened(folder, kMark)->read()->rollouts[0].begun.empty());
  }
  {
    const auto updated = opened(folder);
    CHECK(updated->commit(1, part(0, 0, 0, {1}), kMark.version).ok());
    CHECK(updated->commit(1, part(0, 1, 0, {2}), WeightVersion{5}).ok());  // before the mark
    CHECK(updated->set_mark({"qwen", 7, WeightVersion{5}, "EOS 2", 8}).ok());
    CHECK(updated->commit(1, part(0, 0, 0, {1}), kMark.version).ok());  // of a request that ends with the old weights
    CHECK(updated->commit(1, part(0, 1, 1, {3}), WeightVersion{5}).ok());
    CHECK(updated->commit(1, part(0, 0, 0, {4}), WeightVersion{6}).ok());  // never marked
  }
  {
    const auto again = opened(folder, {"qwen", 7, WeightVersion{5}, "EOS 2", 8});
    const ServedContents had = again->read().value();
    REQUIRE(had.rollouts[0].begun.size() == 1);
    CHECK(had.rollouts[0].begun[0].output.ids == std::vector{2, 3});
    CHECK(again->finish(1, {{.seq = 1, .group = 0, .sample = 1, .version = WeightVersion{5}, .line = "l\n"}}).ok());
    CHECK(again->read()->rollouts[0].begun.empty());
  }
  const auto other = ServedJournal::open(folder.path("journal"), {.model = "llama"});
  CHECK(other.error().detail ==
        cat("journal ", folder.path("journal"), " is of model \"qwen\", and this is \"llama\": remove the folder to begin anew"));
  const auto held = opened(folder);
  CHECK(ServedJournal::open(folder.path("journal"), kMark).error().code == Code::kUnavailable);
}

namespace {

/// A small file system in memory; not there without root.
struct SmallDisk {
  explicit SmallDisk(const std::string& at) : path(at) {
    std::filesystem::create_directory(path);
    is_there = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (is_there) ::umount(path.c_str());
  }
  std::string path;
  bool is_there = false;
};

}  // namespace

TEST_CASE("served journal: a full disk refuses writes, syncs go on, and what was written before is there") {
  const ScratchFolder folder;
  const SmallDisk disk(folder.path("disk"));
  if (!disk.is_there) {
    MESSAGE("skipped: mounting a small tmpfs needs root");
    return;
  }
  std::ofstream(disk.path + "/filler") << std::string(400'000, 'x');  // someone else's file
  uint32_t kept = 0;
  {
    auto opened = ServedJournal::open(disk.path + "/journal", kMark);
    REQUIRE_MESSAGE(opened.ok(), opened.error().detail);
    ServedJournal& journal = **opened;
    const std::vector<int32_t> prompt(1000, 7);
    Status written;
    while (kept < 1000 && (written = journal.add({.number = 1, .id = "a", .sampling = {}}, kept, {group(prompt)})).ok()) ++kept;
    REQUIRE_FALSE(written.ok());
    CHECK(written.error().code == Code::kFull);
    for (int i = 0; i < 3; ++i) {
      CHECK(journal.sync().ok());  // of what is there
      CHECK_FALSE(journal.put({.number = 2, .id = "b", .sampling = {}}).ok());
    }
    // While it is full it cannot be opened again, and nothing goes on.
    CHECK_FALSE(journal.reopen().ok());
    CHECK_FALSE(journal.put({.number = 2, .id = "b", .sampling = {}}).ok());
    CHECK_FALSE(journal.commit(1, part(0, 0, 0, {1}), kMark.version).ok());
    CHECK_FALSE(journal.sync().ok());
    CHECK_FALSE(journal.read().ok());
    std::filesystem::remove(disk.path + "/filler");
    REQUIRE(journal.reopen().ok());
    CHECK(journal.sync().ok());
    CHECK(journal.read()->rollouts.at(0).groups.size() == kept);
    CHECK(journal.put({.number = 2, .id = "b", .sampling = {}}).ok());
  }
  auto again = ServedJournal::open(disk.path + "/journal", kMark);
  REQUIRE_MESSAGE(again.ok(), again.error().detail);
  CHECK((*again)->read()->rollouts.at(0).groups.size() == kept);
  CHECK((*again)->read()->rollouts.at(1).head.id == "b");
}
#endif
