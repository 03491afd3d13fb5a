#ifdef SEER_HAVE_ROCKSDB
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "cli/scratch.h"
#include "storage/rocksdb_journal_db.h"
#include "storage/rollout_journal.h"

using namespace seer;

namespace {

const JournalWork kWork{.model = "qwen", .weights = 5, .version = WeightVersion{3}, .endings = "EOS 2", .tokenizer = 8, .groups = {11, 12}};

struct Journal {
  Result<std::unique_ptr<RolloutJournal>> open(const JournalWork& work = kWork, bool may_resume = true) {
    return RolloutJournal::open(folder.path("journal"), work, may_resume);
  }
  std::unique_ptr<RolloutJournal> opened() {
    auto journal = open();
    REQUIRE_MESSAGE(journal.ok(), journal.error().detail);
    return *std::move(journal);
  }
  std::string refusal(const JournalWork& work, bool may_resume = true) {
    const auto journal = open(work, may_resume);
    REQUIRE_FALSE(journal.ok());
    std::string text = journal.error().detail;
    const std::string path = folder.path("journal");
    for (size_t at; (at = text.find(path)) != std::string::npos;) text.replace(at, path.size(), "J");
    return text;
  }
  ScratchFolder folder;
};

RequestId request(uint32_t group, uint32_t sample, uint32_t rollout = 0) { return {GroupId{group, RolloutId{rollout}}, sample}; }
RolloutCommits commit(RequestId id, int64_t first, std::vector<int32_t> tokens) {
  const std::vector<float> logprobs(tokens.size(), -static_cast<float>(first) - 0.1f);
  KeptIds kept;
  for (const int32_t token : tokens) kept.add(std::vector{token, token + 1});
  return {{{id, first, {std::move(tokens), logprobs, kept}}}};
}

}  // namespace

TEST_CASE("rollout journal: committed tokens and responses are there when it is opened again, in order, of rollout 0") {
  Journal j;
  {
    const auto journal = j.opened();
    CHECK(journal->read()->responses.empty());
    CHECK(journal->commit(commit(request(0, 1, 9), 0, {1, 2})).ok());
    CHECK(journal->commit(commit(request(0, 1, 9), 2, {3})).ok());
    CHECK(journal->commit(commit(request(1, 0, 9), 0, {7})).ok());
    CHECK(journal->commit(commit(request(0, 0, 9), 0, {8, 8})).ok());
    CHECK(journal->finish({.request = request(1, 0, 9), .output = {{7, 9}}, .finish = FinishReason::kStop}).ok());
    CHECK(journal->finish({.request = request(0, 0, 9), .output = {{8, 8}}}).ok());
  }
  for (int opened = 0; opened < 2; ++opened) {
    const Result<JournalContents> had = j.opened()->read();
    REQUIRE(had.ok());
    REQUIRE(had->responses.size() == 2);
    CHECK(had->responses[0].request == request(1, 0));
    CHECK(had->responses[0].output.ids == std::vector{7, 9});
    CHECK(had->responses[1].request == request(0, 0));
    REQUIRE(had->parts.size() == 1);  // the tokens of finished requests are theirs
    CHECK(had->parts[0].request == request(0, 1));
    CHECK(had->parts[0].first_index == 0);
    CHECK(had->parts[0].output.ids == std::vector{1, 2, 3});
    CHECK(had->parts[0].output.logprobs == std::vector{-0.1f, -0.1f, -2.1f});
  }
  const auto journal = j.opened();
  CHECK(journal->finish({.request = request(0, 1), .output = {{1}}}).ok());  // after those that were there
  CHECK(journal->read()->responses.at(2).request == request(0, 1));
}

TEST_CASE("rollout journal: a damaged file is an error, and none of its responses is forgotten unseen") {
  Journal j;
  {
    const auto journal = j.opened();
    for (uint32_t sample = 0; sample < 2000; ++sample)
      CHECK(journal->finish({.request = request(0, sample), .output = {{7, 9}}, .finish = FinishReason::kStop}).ok());
  }
  (void)j.opened();  // what was in its log is in a table from now on
  std::string table;
  for (const auto& file : std::filesystem::recursive_directory_iterator(j.folder.path("journal")))
    if (file.path().extension() == ".sst" && (table.empty() || file.file_size() > std::filesystem::file_size(table))) table = file.path();
  REQUIRE(!table.empty());
  std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(table) / 4));
  file << "damage";
  file.close();
  const auto journal = j.open();
  REQUIRE_FALSE(journal.ok());
  CHECK(journal.error().code == Code::kCorrupt);
}

TEST_CASE("rollout journal: tokens after a gap are left out, and neighbours are not mistaken for each other") {
  Journal j;
  const auto journal = j.opened();
  CHECK(journal->commit(commit(request(0, 1), 0, {1})).ok());
  CHECK(journal->commit(commit(request(0, 1), 5, {6})).ok());
  CHECK(journal->commit(commit(request(0, 2), 0, {2})).ok());
  CHECK(journal->commit(commit(request(0, 0x01ffffff), 0, {3})).ok());
  CHECK(journal->finish({.request = request(0, 0)}).ok());
  CHECK(journal->finish({.request = request(0, 2)}).ok());
  const auto had = journal->read();
  REQUIRE(had->parts.size() == 2);
  CHECK(had->parts[0].output.ids == std::vector{1});
  CHECK(had->parts[1].output.ids == std::vector{3});
}

TEST_CASE("rollout journal: a request that went on with its last token computed again has each token once") {
  Journal j;
  const auto journal = j.opened();
  CHECK(journal->commit(commit(request(0, 1), 0, {1, 2})).ok());
  CHECK(journal->commit(commit(request(0, 1), 2, {3})).ok());
  CHECK(journal->commit(commit(request(0, 1), 2, {3, 4})).ok());
  CHECK(journal->commit(commit(request(0, 1), 3, {4, 5})).ok());
  const auto had = journal->read();
  REQUIRE(had->parts.size() == 1);
  CHECK(had->parts[0].output.ids == std::vector{1, 2, 3, 4, 5});
  CHECK(had->parts[0].output.logprobs.size() == 5);
  REQUIRE(had->parts[0].output.kept_ids.tokens() == 5);
  CHECK(std::ranges::equal(had->parts[0].output.kept_ids.of(3), std::vector{4, 5}));
}

TEST_CASE("rollout journal: the journal of other work, or of work that is not over, is refused with a sentence") {
  Journal j;
  j.opened();
  CHECK(j.refusal(kWork, false) ==
        "journal J has an unfinished rollout: --resume continues it; remove the folder to begin anew");
  JournalWork other = kWork;
  const auto refused = [&](const std::string& why) {
    CHECK(j.refusal(other) == "journal J is of another rollout: " + why + "; remove the folder to begin anew");
    other = kWork;
  };
  other.model = "llama";
  refused("its model is \"qwen\", and this one's \"llama\"");
  other.version = WeightVersion{4};
  refused("its weight version is 3, and this one's 4");
  other.weights = 6;
  refused("its weights, or how they are computed with, differ");
  other.endings = "EOS 2 7";
  refused("its end of responses is \"EOS 2\", and this one's \"EOS 2 7\"");
  other.tokenizer = 9;
  refused("its tokenizer differs");
  other.groups.push_back(1);
  refused("it has 2 prompts, and this one 3");
  other.groups[1] = 1;
  refused("prompt 1 has another text, seed, sampling or number of responses");
  const auto held = j.opened();
  CHECK(j.refusal(kWork).find("in use") != std::string::npos);
}

TEST_CASE("rollout journal: what a request that had failed has since is there") {
  Journal j;
  const auto journal = j.opened();
  CHECK(journal->commit(commit(request(0, 1), 0, {1})).ok());
  CHECK(journal->finish({.request = request(0, 1), .finish = FinishReason::kError}).ok());
  CHECK(journal->read()->parts.empty());
  CHECK(journal->commit(commit(request(0, 1), 0, {2, 3})).ok());
  REQUIRE(journal->read()->parts.size() == 1);
  CHECK(journal->read()->parts[0].output.ids == std::vector{2, 3});
}

TEST_CASE("rollout journal: records of another format are refused") {
  for (const bool has_number : {true, false}) {
    Journal j;
    j.opened();
    {
      const auto db = open_journal_db(j.folder.path("journal") + "/db", "J");
      REQUIRE(db.ok());
      CHECK((has_number ? (*db)->Put({}, "format", "f7") : (*db)->Delete({}, "format")).ok());  // without it: of builds before there was one
    }
    CHECK(j.refusal(kWork) == "journal J was written by another build of Seer: remove the folder to begin anew");
  }
}

TEST_CASE("rollout journal: once cleared it is ready for other work") {
  Journal j;
  {
    const auto journal = j.opened();
    CHECK(journal->finish({.request = request(0, 0)}).ok());
    CHECK(journal->sync().ok());
    CHECK(journal->clear().ok());
  }
  JournalWork other = kWork;
  other.version = WeightVersion{4};
  const auto journal = j.open(other, false);
  REQUIRE(journal.ok());
  CHECK((*journal)->read()->responses.empty());
}

TEST_CASE("rollout journal: another prompt, seed or sampling makes another group, another id or priority does not") {
  GroupSpec group{.id = GroupId{1}, .prompt_ids = {1, 2}, .samples = 2, .sampling = {}, .seeds = {3, 4}, .known_tokens = {}};
  const uint64_t hash = hash_group(group);
  GroupSpec same = group;
  same.id = GroupId{8, RolloutId{9}};
  same.priority = 3;
  same.known_tokens = {5, 6};
  CHECK(hash_group(same) == hash);
  GroupSpec prompt = group, seed = group, sampling = group;
  prompt.prompt_ids[1] = 3;
  seed.seeds[0] = 4;
  sampling.sampling.temperature = 0.5f;
  for (const GroupSpec& other : {prompt, seed, sampling}) CHECK(hash_group(other) != hash);
}
#endif
