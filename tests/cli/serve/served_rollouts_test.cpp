#include "cli/serve/served_rollouts.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/scratch.h"
#include "integration/optional_parts.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

/// Keeps what it is sent. `room`: pieces that it takes until there is room again.
struct Sink final : LineSink {
  bool has_room() const override { return room > 0; }
  void write(std::string_view part) override {
    CHECK_FALSE(is_over);
    text += part;
    --room;
  }
  void end() override { is_over = true; }
  /// The sequence numbers of whole lines; -1: a line without one.
  std::vector<int> seqs() const {
    std::vector<int> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line).value("seq", -1));
    return found;
  }
  Json last() const {
    const size_t end = text.size() - 1;
    return Json::parse(text.substr(text.rfind('\n', end - 1) + 1));
  }
  std::string text;
  int room = 1000;
  bool is_over = false;
};

ServedGroup group(size_t samples, std::string id = "", std::vector<int32_t> prompt_ids = {1, 2}) {
  ServedGroup g{.id = std::move(id), .carried = {}, .prompt_ids = std::move(prompt_ids), .sampling = {}, .seeds = {}};
  for (size_t i = 0; i < samples; ++i) g.seeds.push_back(7 + i);
  return g;
}

struct Bench {
  explicit Bench(ServedLimits limits = {}, std::unique_ptr<ServedJournal> journal = nullptr) : rollouts(limits, std::move(journal)) {}
  std::vector<ServedWork> make(const std::string& id, std::vector<ServedGroup> groups, bool is_open = false) {
    auto work = rollouts.create({.id = id, .sampling = {}, .is_open = is_open}, std::move(groups));
    REQUIRE_MESSAGE(work.ok(), work.error().detail);
    return *std::move(work);
  }
  void finish(const std::string& id, uint32_t g, uint32_t sample, const std::string& text = "x",
              FinishReason finish = FinishReason::kStop) {
    rollouts.finish(rollouts.find(id)->number, {.group = g, .sample = sample, .finish = finish, .output_tokens = 3, .line = {}},
                    cat("{\"text\":\"", text, "\"}\n"));
  }
  std::shared_ptr<Sink> attach(const std::string& id, std::optional<uint64_t> from = {}, int room = 1000, int64_t progress_us = 0) {
    auto sink = std::make_shared<Sink>();
    sink->room = room;
    const auto stream = rollouts.subscribe(id, from, sink, progress_us);
    REQUIRE_MESSAGE(stream.ok(), stream.error().detail);
    last_stream = *stream;
    rollouts.pump(last_stream);
    return sink;
  }
  ServedRollouts rollouts;
  uint64_t last_stream = 0;
};

/// Fails from the write with this number on, for good.
struct FailingJournal final : ServedJournal {
  explicit FailingJournal(int first_in) : first(first_in) {}
  ~FailingJournal() override { CHECK(writes <= first); }  // a gap would be worse than an end
  Status write() { return ++writes == first ? Status{fail(Code::kFull, "the disk is full")} : Status{}; }
  Result<ServedContents> read() const override { return ServedContents{}; }
  Status set_mark(const ServedModelMark&) override { return write(); }
  Status put(const ServedHead&) override { return write(); }
  Status add(const ServedHead&, uint32_t, const std::vector<ServedGroup>&) override { return write(); }
  Status commit(uint64_t, const CommittedTokens&, WeightVersion) override { return write(); }
  Status finish(uint64_t, const std::vector<ServedResponse>&) override { return write(); }
  Status acknowledge(const ServedHead&, const std::vector<ServedResponse>&) override { return write(); }
  Status forget(uint64_t) override { return write(); }
  Status reopen() override { return fail(Code::kFull, "the disk is full"); }
  Status sync() override { return {}; }
  const int first;
  int writes = 0;
};

/// Fails once `room` writes have worked.
struct BoundedJournal final : ServedJournal {
  BoundedJournal(std::unique_ptr<ServedJournal> journal, int& room_in) : inner(std::move(journal)), room(room_in) {}
  Status write(auto call) { return room-- > 0 ? call() : Status{fail(Code::kFull, "the disk is full")}; }
  Result<ServedContents> read() const override { return inner->read(); }
  Status set_mark(const ServedModelMark& mark) override { return write([&] { return inner->set_mark(mark); }); }
  Status put(const ServedHead& head) override { return write([&] { return inner->put(head); }); }
  Status add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups) override {
    return write([&] { return inner->add(head, first, groups); });
  }
  Status commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version) override {
    return write([&] { return inner->commit(rollout, part, version); });
  }
  Status finish(uint64_t rollout, const std::vector<ServedResponse>& responses) override {
    return write([&] { return inner->finish(rollout, responses); });
  }
  Status acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses) override {
    return write([&] { return inner->acknowledge(head, responses); });
  }
  Status forget(uint64_t rollout) override { return write([&] { return inner->forget(rollout); }); }
  Status reopen() override { return inner->reopen(); }
  Status sync() override { return {}; }
  const std::unique_ptr<ServedJournal> inner;
  int& room;
};

std::string why(const auto& result) {
  REQUIRE_FALSE(result.ok());
  return cat(to_string(result.error().code), ": ", result.error().detail);
}

}  // namespace

TEST_CASE("served rollouts: responses are numbered as they are given, and each stream gets them once and in order from its beginning on") {
  Bench b;
  b.make("a", {group(2), group(1)});
  const auto early = b.attach("a");
  b.finish("a", 1, 0, "first");
  b.finish("a", 0, 1, "second");
  b.finish("a", 0, 1, "again");  // dropped
  const auto late = b.attach("a", 2), all = b.attach("a", 1), next = b.attach("a", 3);
  CHECK_FALSE(early->is_over);
  CHECK(early->text == "{\"seq\":1,\"text\":\"first\"}\n{\"seq\":2,\"text\":\"second\"}\n");
  CHECK(late->seqs() == std::vector{2});
  b.finish("a", 0, 0, "third", FinishReason::kAborted);
  for (const auto& [sink, seqs] : {std::pair{early, std::vector{1, 2, 3, -1}}, {late, {2, 3, -1}}, {all, {1, 2, 3, -1}}, {next, {3, -1}}}) {
    CHECK(sink->seqs() == seqs);
    CHECK(sink->is_over);
  }
  const Json done = early->last();
  CHECK(done["type"] == "done");
  CHECK(done["given"] == 3);
  CHECK(done["aborted"] == 1);
  CHECK(done["output_tokens"] == 9);
  CHECK(b.attach("a")->seqs() == std::vector{1, 2, 3, -1});  // also after its end
}

TEST_CASE("served rollouts: where groups are streamed, the responses of a group come together as one line, in the order of its samples") {
  Bench b;
  auto work = b.rollouts.create({.id = "a", .sampling = {}, .streams_groups = true}, {group(2, "\"first\""), group(1), group(2)});
  REQUIRE(work.ok());
  const auto sink = b.attach("a");
  b.finish("a", 0, 1, "1");
  b.finish("a", 0, 1, "again");  // dropped
  b.finish("a", 2, 0, "4");
  CHECK(sink->text.empty());
  CHECK(b.rollouts.state("a")->given == 0);
  b.finish("a", 1, 0, "2");
  CHECK(sink->text == "{\"seq\":1,\"type\":\"group\",\"group\":1,\"responses\":[{\"text\":\"2\"}]}\n");
  b.finish("a", 0, 0, "0", FinishReason::kAborted);
  CHECK(sink->seqs() == std::vector{1, 3});
  const Json line = sink->last();
  CHECK(line["id"] == "first");
  REQUIRE(line["responses"].size() == 2);
  CHECK(line["responses"][0]["text"] == "0");
  CHECK(line["responses"][1]["text"] == "1");
  CHECK(b.rollouts.state("a")->given == 3);
  CHECK(b.rollouts.state("a")->aborted == 1);
  CHECK(b.attach("a", 2)->seqs() == std::vector{3});  // a number within a group: the line that has it
  CHECK(b.rollouts.acknowledge("a", 3).ok());
  CHECK(b.attach("a")->seqs().empty());
  b.finish("a", 2, 1, "5");
  CHECK(sink->seqs() == std::vector{1, 3, 5, -1});
  CHECK(sink->is_over);
}

TEST_CASE("served rollouts: responses that wait for their group count towards the limit, and so do stops") {
  Bench b({.bytes_max = 20'000});
  ServedGroup large = group(2);
  large.sampling.stop.assign(100, std::string(100, 's'));
  REQUIRE(b.rollouts.create({.id = "a", .sampling = {}, .streams_groups = true}, {std::move(large)}).ok());
  CHECK(why(b.rollouts.create({.id = "b", .sampling = {}}, {group(1, "", std::vector<int32_t>(2000))})).starts_with("full: there is no room"));
  b.finish("a", 0, 0, std::string(6'000, 'y'));
  CHECK(why(b.rollouts.create({.id = "b", .sampling = {}}, {group(1, "", std::vector<int32_t>(500))})).starts_with("full: there is no room"));
  CHECK(b.rollouts.forget("a").ok());
  CHECK(b.rollouts.create({.id = "b", .sampling = {}}, {group(1, "", std::vector<int32_t>(4000))}).ok());
}

TEST_CASE("served rollouts: a stream that is not read stops between pieces and goes on where it stopped; the others do not wait for it") {
  Bench b;
  b.make("a", {group(3)});
  const auto slow = b.attach("a", {}, 1), fast = b.attach("a");
  const uint64_t number = b.last_stream - 1;
  const std::string large(600'000, 'y');  // three pieces
  b.finish("a", 0, 0, large);
  b.finish("a", 0, 1);
  CHECK(fast->seqs() == std::vector{1, 2});
  CHECK(slow->text.size() < large.size());
  b.rollouts.tick(10'000'000);  // no line in the middle of another
  CHECK(b.rollouts.acknowledge("a", 2).ok());
  b.finish("a", 0, 2);
  for (int i = 0; i < 2 || !slow->is_over; ++i) {
    REQUIRE(i < 20);
    slow->room = 1;
    b.rollouts.pump(number);
  }
  CHECK(slow->seqs() == std::vector{1, 3, -1});  // the second one was acknowledged meanwhile
  CHECK(slow->text.find(large) != std::string::npos);
}

TEST_CASE("served rollouts: a stream whose responses were all acknowledged before it was read ends all the same") {
  Bench b;
  b.make("a", {group(2)});
  const auto stream = b.attach("a", {}, 0);
  b.finish("a", 0, 0);
  b.finish("a", 0, 1);
  CHECK(b.rollouts.acknowledge("a", 2).ok());
  stream->room = 5;
  b.rollouts.pump(b.last_stream);
  CHECK(stream->seqs() == std::vector{-1});
  CHECK(stream->is_over);
}

TEST_CASE("served rollouts: a rollout that is open takes groups and ends only when it is closed") {
  Bench b;
  b.make("a", {}, true);
  const auto stream = b.attach("a");
  const auto work = b.rollouts.add("a", {group(2, "\"x\""), group(1)});
  REQUIRE(work.ok());
  CHECK(work->at(1).group == 1);
  CHECK(work->at(0).samples == std::vector<uint32_t>{0, 1});
  b.finish("a", 0, 0);
  b.finish("a", 0, 1);
  b.finish("a", 1, 0);
  CHECK_FALSE(stream->is_over);
  CHECK(b.rollouts.close("a").ok());
  CHECK(b.rollouts.close("a").ok());  // once more
  CHECK(stream->seqs() == std::vector{1, 2, 3, -1});
  CHECK(why(b.rollouts.add("a", {group(1)})) == "stale: the rollout is closed: no groups can be added");
}

TEST_CASE("served rollouts: groups that are sent again under the number that they have are not added twice") {
  Bench b;
  b.make("a", {group(1)}, true);
  CHECK(b.rollouts.add("a", {group(2, "7"), group(1)}, 1)->size() == 2);
  CHECK(b.rollouts.add("a", {group(2, "7"), group(1)}, 1)->empty());
  CHECK(b.rollouts.add("a", {group(2, "7")}, 1)->empty());
  const std::string taken = "stale: first_group is 1: expected 3, the number of the next group";
  CHECK(why(b.rollouts.add("a", {group(3, "7")}, 1)) == taken);
  CHECK(why(b.rollouts.add("a", {group(2, "7"), group(1), group(1)}, 1)) == taken);
  CHECK(why(b.rollouts.add("a", {group(1)}, 9)) == "stale: first_group is 9: expected 3, the number of the next group");
  CHECK(why(b.rollouts.add("a", {group(1)}, UINT64_MAX)).starts_with("stale: first_group is 18446744073709551615: expected 3"));
  CHECK(why(b.rollouts.add("a", {group(2, "7")})) == "stale: id 7 is that of group 1 already");
  CHECK(b.rollouts.state("a")->groups == 3);
}

TEST_CASE("served rollouts: a group is found by its id, text or number, and by its place where it has none") {
  Bench b;
  b.make("a", {group(1, "\"x y\""), group(1), group(1, "1"), group(1, "\"3\""), group(1)});
  CHECK(b.rollouts.find_group("a", "x y").value() == 0);
  CHECK(b.rollouts.find_group("a", "1").value() == 2);
  CHECK(b.rollouts.find_group("a", "3").value() == 3);
  CHECK(b.rollouts.find_group("a", "4").value() == 4);
  CHECK(why(b.rollouts.find_group("a", "0")) == "not_found: no group of the rollout has the id 0; group 0 is named by its own, \"x y\"");
  CHECK(why(b.rollouts.find_group("a", "5")) == "not_found: the rollout has no group \"5\"");
  CHECK(why(b.rollouts.find_group("b", "0")) == "not_found: there is no rollout \"b\"");
}

TEST_CASE("served rollouts: what was acknowledged is gone, and nothing else") {
  Bench b;
  b.make("a", {group(4)});
  for (uint32_t sample = 0; sample < 3; ++sample) b.finish("a", 0, sample);
  CHECK(why(b.rollouts.acknowledge("a", 4)) == "invalid_argument: seq is 4: expected at most 3, the last response that was given");
  CHECK(b.rollouts.acknowledge("a", 2).ok());
  CHECK(b.rollouts.acknowledge("a", 1).ok());  // long since
  auto sink = std::make_shared<Sink>();
  CHECK(why(b.rollouts.subscribe("a", 2, sink, 0)) ==
        "invalid_argument: from_seq is 2: expected at least 3, since earlier responses were acknowledged");
  CHECK(why(b.rollouts.subscribe("a", 5, sink, 0)) == "invalid_argument: from_seq is 5: expected at most 4, the next response");
  CHECK(why(b.rollouts.subscribe("b", 1, sink, 0)) == "not_found: there is no rollout \"b\"");
  const auto stream = b.attach("a");
  b.finish("a", 0, 3);
  CHECK(stream->seqs() == std::vector{3, 4, -1});
}

TEST_CASE("served rollouts: beyond its room the oldest rollout that is over and was sent is forgotten, else more is refused") {
  const std::string line(3000, 'z');
  Bench b({.rollouts_max = 3, .bytes_max = 10'000});
  for (const char* id : {"sent", "unsent", "runs"}) b.make(id, {group(1)});
  for (const char* id : {"sent", "unsent"}) b.finish(id, 0, 0, line);
  const auto refused = [&](std::vector<ServedGroup> groups) {
    return why(b.rollouts.create({.id = "new", .sampling = {}}, std::move(groups)));
  };
  CHECK(refused({group(1)}) == "full: there are 3 rollouts, which is the limit: delete one first");
  b.attach("sent");
  b.attach("runs");
  b.make("new", {group(1)}, true);
  CHECK(b.rollouts.find("sent") == nullptr);
  CHECK(b.rollouts.find("unsent") != nullptr);
  CHECK(why(b.rollouts.add("new", {group(1, "", std::vector<int32_t>(2000, 1))})).starts_with("full: there is no room for it"));
  CHECK(b.rollouts.acknowledge("unsent", 1).ok());
  CHECK(b.rollouts.add("new", {group(1, "", std::vector<int32_t>(2000, 1))}).ok());
  b.finish("new", 1, 0);  // its prompt is not kept any more
  CHECK(b.rollouts.add("new", {group(1, "", std::vector<int32_t>(2000, 1))}).ok());
}

TEST_CASE("served rollouts: responses that are to be made are bounded over all rollouts, and ids within one") {
  Bench b({.responses_max = 5});
  b.make("a", {group(4)});
  const auto refused = [&](std::vector<ServedGroup> groups) {
    return why(b.rollouts.create({.id = "b", .sampling = {}}, std::move(groups)));
  };
  CHECK(refused({group(1), group(1)}) == "full: the server would have 6 responses to make for rollouts: expected at most 5");
  b.finish("a", 0, 0);
  b.make("b", {group(1), group(1)});
  CHECK(b.rollouts.forget("b").ok());
  CHECK(refused({group(1, "7"), group(1, "7")}) == "invalid_argument: id 7 is given twice");
  b.make("b", {group(1, "7"), group(1, "\"7\"")});
}

TEST_CASE("served rollouts: a rollout that is deleted ends its streams, and what still comes of it is dropped") {
  Bench b;
  const auto work = b.make("a", {group(2)});
  const auto stream = b.attach("a");
  b.finish("a", 0, 0);
  CHECK(b.rollouts.forget("a").value() == work[0].rollout);
  CHECK(stream->is_over);
  CHECK(stream->last()["type"] == "error");
  b.rollouts.finish(work[0].rollout, {.group = 0, .sample = 1, .line = {}}, "{}\n");
  b.rollouts.commit(work[0].rollout, {.request = {GroupId{0}, 1}}, WeightVersion{1});
  CHECK(b.rollouts.group(work[0].rollout, 0) == nullptr);
  CHECK(why(b.rollouts.forget("a")) == "not_found: there is no rollout \"a\"");
  b.make("a", {group(1)});  // its name is free
}

TEST_CASE("served rollouts: progress comes at its times, to streams that asked for it") {
  Bench b;
  b.make("a", {group(3)});
  const auto asks = b.attach("a", {}, 1000, 2'000'000), silent = b.attach("a");
  for (int64_t now_us : {10'000'000, 11'000'000, 12'000'000, 13'900'000, 14'000'000}) b.rollouts.tick(now_us);
  CHECK(asks->seqs() == std::vector{-1, -1, -1});
  CHECK(asks->last()["type"] == "progress");
  CHECK(asks->last()["responses"] == 3);
  CHECK(silent->text.empty());
}

TEST_CASE("served rollouts: what a rollout expects decides whether it runs, waits or is over") {
  const auto turn = [](const std::string& label, uint64_t number, uint64_t runs, const std::string& name, bool is_first) {
    return turn_of({.id = "a", .sampling = {}, .expected_label = label, .expected_version = WeightVersion{number}},
                   {.version = WeightVersion{runs}, .name = name, .is_first = is_first});
  };
  for (const bool is_first : {true, false}) {
    CHECK(turn("", 0, 7, "", is_first) == Turn::kRuns);  // any weights
    CHECK(turn("12", 12, 12, "", is_first) == Turn::kRuns);
    CHECK(turn("12", 12, 1, "", is_first) == Turn::kWaits);
    CHECK(turn("12", 12, 11, "step-11", is_first) == Turn::kWaits);
    CHECK(turn("12", 12, 13, "", is_first) == Turn::kIsOver);
    CHECK(turn("12", 12, 12, "other", is_first) == Turn::kIsOver);
    CHECK(turn("step-12", 4, 2, "step-12", is_first) == Turn::kRuns);  // counted anew since a restart
  }
  CHECK(turn("12", 12, 2, "12", false) == Turn::kRuns);
  CHECK(turn("step-12", 4, 1, "", true) == Turn::kWaits);
  CHECK(turn("step-12", 4, 4, "", true) == Turn::kWaits);
  CHECK(turn("step-12", 4, 2, "step-11", false) == Turn::kIsOver);
  CHECK(turn("step-12", 4, 2, "", false) == Turn::kIsOver);
  CHECK(turn("1", 2, 1, "", true) == Turn::kWaits);  // a trainer's name, not the version of the start
  CHECK(turn("1", 2, 2, "1", false) == Turn::kRuns);
  // In a cluster that ran on the weights of before are those of the start, without their name.
  const ServedHead head{.id = "a", .sampling = {}, .expected_label = "step-12", .expected_version = WeightVersion{4}};
  CHECK(turn_of(head, {.version = WeightVersion{4}, .is_first = true, .were_marked = true}) == Turn::kRuns);
  CHECK(turn_of(head, {.version = WeightVersion{3}, .is_first = true, .were_marked = true}) == Turn::kWaits);
}

TEST_CASE("served rollouts: tokens that come after some that the journal lacks are not written, or they would be joined to others") {
  if (!has_rocksdb()) return;
#ifdef SEER_HAVE_ROCKSDB
  const ScratchFolder folder;
  const ServedModelMark mark{.model = "m", .weights = 5, .version = WeightVersion{3}};
  int room = 1000;
  {
    Bench b({}, std::make_unique<BoundedJournal>(ServedJournal::open(folder.path("journal"), mark).value(), room));
    const uint64_t number = b.make("a", {group(2)})[0].rollout;
    const auto commit = [&](uint32_t sample, int64_t first, std::vector<int32_t> tokens) {
      b.rollouts.commit(number, {.request = {GroupId{0}, sample}, .first_index = first, .output = {std::move(tokens)}}, mark.version);
    };
    commit(0, 0, {1, 2});
    room = 0;
    commit(0, 2, {3, 4});
    room = 1000;
    b.rollouts.tick(100'000'000);
    CHECK(b.rollouts.journal_failed().ok());
    commit(0, 4, {5, 6});
    commit(1, 0, {7});
  }
  for (int restart = 0; restart < 2; ++restart) {  // the second one after a process that went on with other tokens
    Bench b({}, ServedJournal::open(folder.path("journal"), mark).value());
    const std::vector<ServedWork> left = b.rollouts.restore().value();
    CHECK(b.rollouts.had_same_weights());
    REQUIRE(left.size() == 1);
    REQUIRE(left[0].begun.size() == 2);
    CHECK(left[0].begun[0].output.ids == (restart == 0 ? std::vector{1, 2} : std::vector{1, 2, 8, 9, 10}));
    CHECK(left[0].begun[1].output.ids == std::vector{7});
    b.rollouts.commit(left[0].rollout, {.request = {GroupId{0}, 0}, .first_index = 2, .output = {{8, 9, 10}}}, mark.version);
  }
#endif
}

TEST_CASE("served rollouts: the state of one that waits for weights says for which") {
  Bench b;
  REQUIRE(b.rollouts.create({.id = "a", .sampling = {}, .expected_label = "step \"12\""}, {group(1)}).ok());
  const auto line = [&] { return Json::parse(served_state_line("progress", b.rollouts.state("a").value())); };
  CHECK_FALSE(line().contains("waits_for_version"));
  b.rollouts.set_waits(b.rollouts.find("a")->number, true);
  CHECK(line()["waits_for_version"] == "step \"12\"");
  b.rollouts.set_waits(b.rollouts.find("a")->number, false);
  CHECK_FALSE(line().contains("waits_for_version"));
}

TEST_CASE("served rollouts: with a journal that fails nothing more is taken in, and what runs is given all the same") {
  Bench b({}, std::make_unique<FailingJournal>(2));
  b.make("a", {group(2)}, true);
  CHECK(b.rollouts.journal_failed().ok());
  const auto stream = b.attach("a");
  b.finish("a", 0, 0);
  b.finish("a", 0, 1);
  CHECK(b.rollouts.journal_failed().error().detail == "the disk is full");
  const std::string refused = "unavailable: the journal cannot be written, so no groups are taken in: the disk is full";
  CHECK(why(b.rollouts.add("a", {group(1)})) == refused);
  CHECK(why(b.rollouts.create({.id = "b", .sampling = {}}, {group(1)})) == refused);
  CHECK(b.rollouts.find("b") == nullptr);
  CHECK(b.rollouts.close("a").ok());
  CHECK(b.rollouts.acknowledge("a", 1).ok());
  CHECK(stream->seqs() == std::vector{1, 2, -1});

  Bench none({}, std::make_unique<FailingJournal>(1));
  CHECK(why(none.rollouts.create({.id = "a", .sampling = {}}, {group(1)})) == refused);
  CHECK(none.rollouts.find("a") == nullptr);
}

TEST_CASE("served rollouts: a journal that works again gets what it lacks, and has no gap wherever the process dies") {
  if (!has_rocksdb()) return;
#ifdef SEER_HAVE_ROCKSDB
  bool is_mended = false;
  for (int writes = 0; !is_mended; ++writes) {  // that work before the disk is full once more, and the process dies
    REQUIRE(writes < 30);
    CAPTURE(writes);
    const ScratchFolder folder;
    const ServedModelMark mark{.model = "m", .weights = 5, .version = WeightVersion{3}}, later{.model = "m", .weights = 6, .version = WeightVersion{4}};
    int room = 1000;
    std::string given;  // of "a" from its third response on
    {
      Bench b({}, std::make_unique<BoundedJournal>(ServedJournal::open(folder.path("journal"), mark).value(), room));
      const uint64_t number = b.make("a", {group(3), group(2)}, true)[0].rollout;
      b.make("deleted", {group(1)});
      b.make("closed", {group(1)}, true);
      REQUIRE(b.rollouts.create({.id = "grouped", .sampling = {}, .streams_groups = true}, {group(2), group(1)}).ok());
      b.finish("a", 0, 0, "first");
      room = 0;
      b.finish("a", 0, 1, "second");
      b.finish("a", 1, 1, "third");
      b.finish("grouped", 0, 0, "0");
      b.finish("grouped", 0, 1, "1");
      CHECK(b.rollouts.acknowledge("a", 2).ok());
      CHECK(b.rollouts.forget("deleted").ok());
      CHECK(b.rollouts.close("closed").ok());
      b.rollouts.set_mark(later);
      CHECK_FALSE(b.rollouts.create({.id = "refused", .sampling = {}}, {group(1)}).ok());
      CHECK_FALSE(b.rollouts.add("a", {group(1)}).ok());
      room = writes;
      is_mended = b.rollouts.create({.id = "new", .sampling = {}}, {group(1)}).ok();
      CHECK(is_mended == b.rollouts.journal_failed().ok());
      if (is_mended) {
        room = 1000;
        b.rollouts.commit(number, {.request = {GroupId{1}, 0}, .output = {{4}, {-1}}}, later.version);
        b.finish("a", 0, 2, "fourth");
      }
      given = b.attach("a")->text;
    }
    auto journal = ServedJournal::open(folder.path("journal"), later);
    if (!journal.ok()) FAIL(journal.error().detail);
    Bench b({}, *std::move(journal));
    const std::vector<ServedWork> left = b.rollouts.restore().value();
    const ServedState a = b.rollouts.state("a").value();
    CHECK(a.acknowledged <= a.given);
    CHECK(std::ranges::count(left, b.rollouts.find("a")->number, &ServedWork::rollout) == (is_mended ? 1 : 2));
    const auto sink = b.attach("a");
    for (const int seq : sink->seqs()) CHECK(seq > 0);
    CHECK(b.attach("grouped")->seqs().size() <= 1);
    CHECK(b.rollouts.find("refused") == nullptr);
    if (is_mended) {
      CHECK(sink->text == given);
      CHECK(sink->seqs() == std::vector{3, 4});
      CHECK(b.attach("grouped")->seqs() == std::vector{2});
      CHECK(b.rollouts.find("deleted") == nullptr);
      CHECK_FALSE(b.rollouts.state("closed")->is_open);
      CHECK(b.rollouts.find("new") != nullptr);
      CHECK(left[0].begun.size() == 1);
    }
  }
#endif
}

TEST_CASE("served rollouts: a journal that failed is tried again also while no groups come") {
  if (!has_rocksdb()) return;
#ifdef SEER_HAVE_ROCKSDB
  const ScratchFolder folder;
  int room = 1000;
  Bench b({}, std::make_unique<BoundedJournal>(ServedJournal::open(folder.path("journal"), {.model = "m"}).value(), room));
  b.make("a", {group(2)});
  room = 0;
  b.finish("a", 0, 0);
  b.rollouts.tick(50'000'000);
  CHECK_FALSE(b.rollouts.journal_failed().ok());
  room = 1000;
  b.rollouts.tick(59'000'000);
  CHECK_FALSE(b.rollouts.journal_failed().ok());
  b.rollouts.tick(60'000'000);
  CHECK(b.rollouts.journal_failed().ok());
#endif
}

TEST_CASE("served rollouts: with a journal another process goes on with all that was taken in and given, and nothing comes twice") {
  if (!has_rocksdb()) return;
#ifdef SEER_HAVE_ROCKSDB
  const ScratchFolder folder;
  ServedModelMark mark{.model = "m", .weights = 5, .version = WeightVersion{3}};
  const auto journal = [&] { return ServedJournal::open(folder.path("journal"), mark).value(); };
  std::string whole;
  {
    Bench b({}, journal());
    b.make("gone", {group(1)});
    const uint64_t number = b.make("a", {group(2, "\"x\""), group(2)}, true)[0].rollout;
    REQUIRE(b.rollouts.add("a", {group(1), group(2)}).ok());
    const auto stream = b.attach("a");
    b.finish("a", 0, 1, "first");
    b.finish("a", 2, 0, "second");
    b.finish("a", 1, 1, "third");
    CHECK(b.rollouts.acknowledge("a", 1).ok());
    b.rollouts.commit(number, {.request = {GroupId{0}, 0}, .output = {{4, 5}, {-1, -2}}}, mark.version);
    b.rollouts.commit(number, {.request = {GroupId{0}, 0}, .first_index = 2, .output = {{6}, {-3}}}, mark.version);
    b.rollouts.commit(number, {.request = {GroupId{0}, 1}, .output = {{9}, {-9}}}, mark.version);    // is over
    b.rollouts.commit(number, {.request = {GroupId{3}, 1}, .output = {{7}, {-7}}}, mark.version);
    b.finish("a", 3, 1, "made anew with other weights");
    b.rollouts.commit(number, {.request = {GroupId{1}, 0}, .output = {{8}, {-8}}}, WeightVersion{4});  // other weights
    CHECK(b.rollouts.forget("gone").ok());
    CHECK(b.rollouts.sync().ok());
    whole = stream->text;
  }
  {
    Bench b({}, journal());
    const std::vector<ServedWork> left = b.rollouts.restore().value();
    REQUIRE(left.size() == 3);
    CHECK(left[2].samples == std::vector<uint32_t>{0});
    CHECK(left[2].begun.empty());
    CHECK(left[0].group == 0);
    CHECK(left[0].samples == std::vector<uint32_t>{0});
    REQUIRE(left[0].begun.size() == 1);
    CHECK(left[0].begun[0].output.ids == std::vector{4, 5, 6});
    CHECK(left[0].begun[0].output.logprobs == std::vector{-1.0f, -2.0f, -3.0f});
    CHECK(left[1].samples == std::vector<uint32_t>{0});
    CHECK(left[1].begun.empty());
    CHECK(b.rollouts.find("gone") == nullptr);
    CHECK(b.rollouts.state("a")->given == 4);
    const auto stream = b.attach("a");
    CHECK(stream->text == whole.substr(whole.find('\n') + 1));
    b.finish("a", 0, 0);
    b.finish("a", 3, 0);
    CHECK(b.rollouts.add("a", {group(1)}, 2)->empty());
    CHECK(b.rollouts.close("a").ok());
  }
  mark.weights = 6;  // tokens of other weights are not gone on with, but responses stay
  {
    Bench b({}, journal());
    const std::vector<ServedWork> left = b.rollouts.restore().value();
    REQUIRE(left.size() == 1);
    CHECK(left[0].begun.empty());
    CHECK(why(b.rollouts.add("a", {group(1)})) == "stale: the rollout is closed: no groups can be added");
    const auto stream = b.attach("a", 3);
    b.finish("a", 1, 0);
    CHECK(stream->seqs() == std::vector{3, 4, 5, 6, 7, -1});
    CHECK(b.rollouts.acknowledge("a", 7).ok());
  }
  Bench b({}, journal());
  CHECK(b.rollouts.restore()->empty());
  CHECK(b.attach("a")->seqs() == std::vector{-1});
#endif
}

TEST_CASE("served rollouts: one that has what it needs is stopped once and closed; what was cut short does not count") {
  Bench b;
  const auto make = [&](const std::string& id, ServedStop stop) {
    REQUIRE(b.rollouts.create({.id = id, .sampling = {}, .is_open = true, .stop = stop}, {group(2), group(2), group(1)}).ok());
    return b.rollouts.find(id)->number;
  };
  const uint64_t groups = make("groups", {.groups = 2}), samples = make("samples", {.samples = 2}), late = make("late", {.deadline_s = 5}),
                 never = make("never", {});
  CHECK(b.rollouts.take_stopped(1'000'000).empty());
  for (const char* id : {"groups", "samples", "never"}) b.finish(id, 0, 0);
  for (const char* id : {"groups", "samples", "never"}) b.finish(id, 0, 1, "x", FinishReason::kAborted);
  b.finish("groups", 1, 0);
  b.finish("groups", 1, 1);
  CHECK(b.rollouts.take_stopped(2'000'000).empty());  // one whole group, one whole sample
  b.finish("samples", 1, 0, "x", FinishReason::kLength);
  CHECK(b.rollouts.take_stopped(3'000'000) == std::vector{samples});
  b.finish("groups", 2, 0);  // its last: it is open still
  CHECK(b.rollouts.take_stopped(4'000'000) == std::vector{groups});
  CHECK(b.rollouts.take_stopped(5'999'999).empty());
  CHECK(b.rollouts.take_stopped(6'000'000) == std::vector{late});
  CHECK(b.rollouts.take_stopped(7'000'000).empty());
  CHECK(b.rollouts.state("samples")->is_stopped);
  CHECK_FALSE(b.rollouts.state("samples")->is_open);
  CHECK(why(b.rollouts.add("samples", {group(1)})) == "stale: the rollout is closed: no groups can be added");
  CHECK(b.rollouts.head(never).is_open);
}
