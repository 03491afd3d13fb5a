#include "actors/log.h"

#include <doctest/doctest.h>

#include <sstream>

#include "protocols/ids.h"

using namespace seer;

TEST_CASE("log: a line has the virtual time, the level, the event and its fields") {
  std::ostringstream out;
  const EventLog log = EventLog::to(out, LogLevel::kInfo, LogClock::kVirtual);
  log.info(12'345'678, "instance_up", {{"instance", InstanceId{3}}, {"kv_blocks", 40}, {"share", 0.5}});
  log.warn(0, "instance_lost");
  CHECK(out.str() == "12.345678 info instance_up instance=3 kv_blocks=40 share=0.5\n0.000000 warn instance_lost\n");
}

TEST_CASE("log: fields that a part gives once come first in each of its lines, and not in those of others") {
  std::ostringstream out;
  const EventLog log = EventLog::to(out, LogLevel::kInfo, LogClock::kVirtual);
  const EventLog of_rollout = log.with({{"rollout", 7}});
  of_rollout.with({{"group", 2}}).info(0, "group_cancelled", {{"requests", 3}});
  of_rollout.warn(0, "rollout_ended");
  log.info(0, "node_up");
  CHECK(out.str() == "0.000000 info group_cancelled rollout=7 group=2 requests=3\n0.000000 warn rollout_ended rollout=7\n"
                     "0.000000 info node_up\n");
}

TEST_CASE("log: a value with spaces, quotes, '=' or nothing in it is quoted, and stays on its line") {
  std::ostringstream out;
  const EventLog log = EventLog::to(out, LogLevel::kInfo, LogClock::kVirtual);
  log.info(0, "e", {{"a", "two words"}, {"b", "say \"no\""}, {"c", "x=y"}, {"d", ""}, {"e", "one\ntwo"}, {"f", "{}%s"}});
  CHECK(out.str() == "0.000000 info e a=\"two words\" b=\"say \\\"no\\\"\" c=\"x=y\" d=\"\" e=\"one two\" f={}%s\n");
}

TEST_CASE("log: a value from a client neither reaches the terminal's controls nor makes a line too long") {
  std::ostringstream out;
  const EventLog log = EventLog::to(out, LogLevel::kInfo, LogClock::kVirtual);
  log.info(0, "e", {{"a", "\x1b[2J\x7f"}, {"b", "\r\t"}});
  CHECK(out.str() == "0.000000 info e a=\"\\x1b[2J\\x7f\" b=\"\\x0d\\x09\"\n");
  out.str("");
  std::string umlauts;
  for (int i = 0; i < 2000; ++i) umlauts += "\u00fc";  // two bytes each
  log.info(0, "e", {{"a", "-" + umlauts}});
  CHECK(out.str() == "0.000000 info e a=-" + umlauts.substr(0, 998) + "...\n");
}

TEST_CASE("log: only lines of its level and above are written, and none if it is off or a default one") {
  for (const std::string& name : log_level_names()) {
    CAPTURE(name);
    std::ostringstream out;
    const EventLog log = EventLog::to(out, log_level_of(name), LogClock::kVirtual);
    log.debug(0, "d");
    log.info(0, "i");
    log.warn(0, "w");
    log.error(0, "e");
    std::string events;
    for (const char c : {'d', 'i', 'w', 'e'})
      if (out.str().find(std::string(" ") + c + "\n") != std::string::npos) events += c;
    CHECK(events == std::string("diwe").substr(name == "debug" ? 0 : name == "info" ? 1 : name == "warn" ? 2 : name == "error" ? 3 : 4));
  }
  CHECK_FALSE(EventLog().is_on(LogLevel::kError));
  EventLog().error(0, "e");
}

TEST_CASE("log: a file that cannot be opened is named with the reason") {
  const Result<EventLog> log = EventLog::open({.file = "/no/such/folder/seer.log"});
  REQUIRE_FALSE(log.ok());
  CHECK(log.error().code == Code::kIo);
  CHECK(log.error().detail == "cannot open the log /no/such/folder/seer.log: No such file or directory");
}
