#include "cli/serve/status_page.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "cli/serve/example_figures.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

/// A server whose thread is this one, and a gateway that answers at once.
class ThisThread final : public HttpServer {
 public:
  uint16_t port() const override { return 0; }
  void start(HttpHandler) override {}
  void post(std::function<void()> work) override { work(); }
  void stop_listening() override {}
  size_t connections() const override { return 7; }
  const HttpWatcher& watcher() const { return watcher_; }
};
struct Answer final : HttpReply {
  void send(int status_in, std::string body_in, std::string_view type_in) override {
    status = status_in, body = std::move(body_in), type = type_in;
  }
  void begin(std::string_view) override {}
  void write(std::string_view) override {}
  void end() override {}
  void on_gone(std::function<void()>) override {}
  bool has_room() const override { return true; }
  void on_room(std::function<void()>) override {}
  int status = 0;
  std::string body, type;
};

ServedModel served() {
  ServedModel model;
  model.name = "tiny \"<b>\"";
  model.instances_expected = [] { return 3; };
  return model;
}

struct Bench {
  ThisThread server;
  std::shared_ptr<GatewayDoor> door = std::make_shared<GatewayDoor>();
  Front front{server, door, served(), WeightVersion{3}};
  std::ostringstream lines;
  ServedRollouts rollouts{{}};
  StatusPage page{server, front, rollouts, EventLog::to(lines, LogLevel::kInfo, LogClock::kVirtual)};

  Answer ask(const std::string& path, std::map<std::string, std::string> query = {},
             const std::string& method = "GET") {
    const auto reply = std::make_shared<Answer>();
    CHECK(page.handle({.method = method, .path = path, .query = std::move(query), .body = {}}, reply));
    return *reply;
  }
};

}  // namespace

TEST_CASE("status page: its figures are those of the gateway and of all machines") {
  Bench b;
  ServeFigures figures;
  figures.take(example_report(), 2'000'000);
  const Json json =
      Json::parse(status_json(figures, example_loads(), b.front, {.started_us = 1'000'000, .now_us = 4'000'000}));
  CHECK(json["model"] == "tiny \"<b>\"");
  CHECK(json["weight_version"] == "3");
  CHECK(json["uptime_s"] == 3.0);
  CHECK(json["responses"] ==
        Json{{"held", 5}, {"queued", 3}, {"running", 6}, {"stop", 12}, {"length", 8}, {"abort", 2}, {"error", 1}});
  CHECK(json["oldest_request_s"] == 1.5);
  CHECK(json["instances_expected"] == 3);
  CHECK(json["instances"].size() == 2);
  CHECK(json["instances"][1]["id"] == 1024);
  CHECK(json["instances"][1]["node"] == 1);
  CHECK(json["restarts"] == 1);
  CHECK(json["kv"] == Json{{"device", {{"used_bytes", 500}, {"bytes", 2000}}},
                           {"dram", {{"used_bytes", 50}, {"bytes", 500}}},
                           {"cold", {{"used_bytes", 0}, {"bytes", 0}}}});
  CHECK(json["drafts"] == Json{{"verifies", 8}, {"drafted", 20}, {"accepted", 12}, {"acceptance_length", 2.5}});
  CHECK(json["rollouts"][0]["tokens_per_s"] == 500.0);
  CHECK(json["rollouts"][0]["error"] == "node 0 is \xef\xbf\xbd gone");  // JSON has no other bytes than UTF-8
  CHECK(json["history"]["samples"] ==
        Json::parse("[[1.0, 5, 3, 6, 0.0, 0.25, 0.1, 0.0, [[0, 3, 0.25], [1024, 3, 0.25]]]]"));
}

TEST_CASE("status page: without drafts, machines and rollouts it has figures too") {
  Bench b;
  const Json json = Json::parse(status_json(ServeFigures{}, {}, b.front, {}));
  CHECK(json["drafts"] == nullptr);
  CHECK(json["instances"].empty());
  CHECK(json["rollouts"].empty());
  CHECK(json["history"]["samples"].empty());
}

TEST_CASE("status page: the history begins where it is asked to, or where it is known") {
  Bench b;
  ServeFigures figures;
  for (int i = 0; i < 605; ++i) figures.take(example_report(), i);
  for (const auto& [asked, first] :
       std::map<uint64_t, uint64_t>{{0, 5}, {5, 5}, {600, 600}, {605, 605}, {99'999, 605}, {UINT64_MAX, 605}}) {
    CAPTURE(asked);
    const Json history = Json::parse(status_json(figures, {}, b.front, {.first_sample = asked}))["history"];
    CHECK(history["first_sample"] == first);
    CHECK(history["next_sample"] == 605);
    CHECK(history["samples"].size() == 605 - first);
  }
}

TEST_CASE("status page: what cannot be answered is said in one sentence") {
  Bench b;
  for (const char* const wrong : {"", "-1", "x", "1x", "99999999999999999999"}) {
    CAPTURE(wrong);
    const Answer answer = b.ask("/seer/v1/status", {{"first_sample", wrong}});
    CHECK(answer.status == 400);
    CHECK(Json::parse(answer.body)["error"]["message"] ==
          cat("first_sample is \"", wrong, "\": expected a number from 0 on"));
  }
  CHECK(b.ask("/metrics", {}, "POST").status == 405);
  CHECK(b.ask("/", {}, "DELETE").status == 405);
  CHECK_FALSE(
      b.page.handle({.method = "GET", .path = "/generate", .query = {}, .body = {}}, std::make_shared<Answer>()));
}

TEST_CASE("status page: it is one file that names no other host") {
  Bench b;
  const Answer page = b.ask("/");
  CHECK(page.status == 200);
  CHECK(page.type == "text/html; charset=utf-8");
  CHECK(page.body == status_page_html());
  CHECK(page.body.starts_with("<!doctype html>"));
  CHECK(page.body.ends_with("</html>\n"));
  CHECK(page.body.find("https:") == std::string::npos);
  CHECK(page.body.find("src=") == std::string::npos);
  CHECK(page.body.find("innerHTML") == std::string::npos);  // names come from elsewhere
  // The namespace of SVG is a name, not an address.
  const size_t svg = page.body.find("http:");
  CHECK(page.body.substr(svg, 26) == "http://www.w3.org/2000/svg");
  CHECK(page.body.find("http:", svg + 1) == std::string::npos);
}

TEST_CASE("status page: what is refused leaves a line with its sentence, in every dialect, and what is answered none") {
  Bench b;
  b.server.watcher()("/generate", 200, "{}");
  b.server.watcher()("/generate", 400, R"({"error":{"message":"the prompt is empty","type":"x"}})");
  b.server.watcher()("/update_weights_from_disk", 400, R"({"success":false,"message":"no such folder"})");
  b.server.watcher()("/flush_cache", 400, "Cache was not flushed.\n");
  b.server.watcher()("", 401, R"({"error":{"message":"the token is missing"}})");
  b.server.watcher()("/a\x1b[2J", 404, "[1]");
  std::istringstream in(b.lines.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(line.find(' ') + 1));
  CHECK(lines ==
        std::vector<std::string>{"info http_refused path=/generate status=400 error=\"the prompt is empty\"",
                                 "info http_refused path=/update_weights_from_disk status=400 error=\"no such folder\"",
                                 "info http_refused path=/flush_cache status=400 error=\"Cache was not flushed. \"",
                                 "info http_refused path=\"\" status=401 error=\"the token is missing\"",
                                 "info http_refused path=\"/a\\x1b[2J\" status=404 error=[1]"});
}
