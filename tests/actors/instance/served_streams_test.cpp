#include "actors/instance/served_streams.h"

#include <doctest/doctest.h>

#include <vector>

using namespace seer;

namespace {

/// Notes what it is asked for, and answers nothing itself.
struct NotingServer final : EngineServer {
  const std::string& name() const override { return name_; }
  void run(ServedAsk ask, std::function<void(ServedPart)>) override { asked.push_back(ask.rid); }
  void end(const std::string& rid) override { ended.push_back(rid); }
  void look(std::function<void(Result<ServerState>)>) override {}
  void update_weights(std::string, std::string, std::function<void(Status)>) override {}
  void pass(std::vector<HttpAsk>, std::function<void(Status)>) override {}
  std::vector<std::string> asked, ended;
  std::string name_ = "server";
};

constexpr RequestId request(uint32_t sample, uint32_t rollout = 1) { return {{0, RolloutId{rollout}}, sample}; }
constexpr ChunkId chunk(uint64_t number) { return {number, RolloutId{1}}; }

struct Streams {
  /// The stream's number.
  uint64_t open(RequestId request, ChunkId chunk, const std::string& rid, int64_t asked = 100) {
    streams.open(request, chunk, {.rid = rid, .tokens = {}, .max_new_tokens = asked, .sampling = {}}, [](uint64_t, const ServedPart&) {});
    return streams.of(chunk)->number;
  }
  static TokenLog log(std::vector<int32_t> tokens) { return TokenLog(tokens, 1); }

  std::shared_ptr<NotingServer> server = std::make_shared<NotingServer>();
  ServedStreams streams{server};
};

}  // namespace

TEST_CASE("served streams: a chunk takes a part of what came, and the next chunk the rest with the end") {
  Streams s;
  const uint64_t number = s.open(request(0), chunk(1), "a");
  s.streams.add(number, {.output = {{1, 2}, {-1, -2}}});
  ServedStream& stream = s.streams.add(number, {.output = {{3}, {-3}}, .end = ServedEnd::kStop, .matched = "9"});
  const ServedPart first = ServedStreams::take(stream, 2);
  CHECK(first.output.ids == std::vector<int32_t>{1, 2});
  CHECK(first.output.logprobs == std::vector<float>{-1, -2});
  CHECK(first.end == ServedEnd::kNone);
  ServedStreams::keep(stream, Streams::log({7, 1, 2}), 50);
  CHECK(s.streams.of(chunk(1)) == nullptr);

  ServedStream* const taken = s.streams.take_over(request(0), chunk(2), Streams::log({7, 1, 2}));
  REQUIRE(taken != nullptr);
  CHECK(s.streams.of(chunk(2)) == taken);
  const ServedPart rest = ServedStreams::take(*taken, 16);
  CHECK(rest.output.ids == std::vector<int32_t>{3});
  CHECK(rest.output.logprobs == std::vector<float>{-3});
  CHECK(rest.end == ServedEnd::kStop);
  CHECK(rest.matched == "9");
  s.streams.close_of(chunk(2));
  CHECK(s.streams.size() == 0);
  CHECK(s.server->ended.empty());  // the server had ended it
}

TEST_CASE("served streams: one is taken over only by its request, from exactly its tokens") {
  Streams s;
  ServedStreams::keep(*s.streams.of((s.open(request(0), chunk(1), "a"), chunk(1))), Streams::log({7, 1, 2}), 50);
  CHECK(s.streams.take_over(request(1), chunk(2), Streams::log({7, 1, 2})) == nullptr);
  CHECK(s.streams.waiting() == 1);
  CHECK(s.streams.take_over(request(0), chunk(3), Streams::log({7, 1, 3})) == nullptr);
  CHECK(s.streams.size() == 0);  // no chunk will want it any more
  CHECK(s.server->ended == std::vector<std::string>{"a"});

  ServedStreams::keep(*s.streams.of((s.open(request(0), chunk(4), "b"), chunk(4))), Streams::log({7}), 50);
  CHECK(s.streams.take_over(request(0), chunk(5), Streams::log({7, 1})) == nullptr);
  CHECK(s.server->ended.back() == "b");
}

TEST_CASE("served streams: those that wait are closed when their time is over, for room, and with their rollout") {
  Streams s;
  const auto wait = [&](RequestId request, uint64_t number, const std::string& rid, int64_t until_us) {
    s.open(request, chunk(number), rid);
    ServedStreams::keep(*s.streams.of(chunk(number)), Streams::log({1}), until_us);
  };
  s.open(request(0), chunk(1), "runs");
  wait(request(1), 2, "b", 30);
  wait(request(2), 3, "c", 20);
  wait(request(3), 4, "d", 40);
  wait(request(3, 2), 5, "other", 90);
  CHECK_FALSE(s.streams.close_waited(19));
  CHECK(s.streams.close_waited(20));
  CHECK(s.server->ended == std::vector<std::string>{"c"});
  s.streams.close_oldest_waiting();
  CHECK(s.server->ended.back() == "b");
  s.streams.close_waiting(RolloutId{1});
  CHECK(s.server->ended.back() == "d");
  CHECK(s.streams.size() == 2);
  s.streams.close_all_waiting();
  CHECK(s.server->ended.back() == "other");
  CHECK(s.streams.of(chunk(1)) != nullptr);
}

TEST_CASE("served streams: a stream that leaves is ended at the server only if that still owes something") {
  const auto server = std::make_shared<NotingServer>();
  {
    Streams s{.server = server};
    const uint64_t all = s.open(request(0), chunk(1), "all", 2);
    s.streams.add(all, {.output = {{1, 2}}});
    s.streams.close(all);
    CHECK_FALSE(s.streams.has(all));
    CHECK(server->ended.empty());
    s.streams.add(s.open(request(1), chunk(2), "some", 2), {.output = {{1}}});
  }
  CHECK(server->ended == std::vector<std::string>{"some"});
}
