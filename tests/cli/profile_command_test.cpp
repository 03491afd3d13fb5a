#include "cli/profile_command.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

using namespace seer;

TEST_CASE("profile: the grid has every kind of step, keeps within its limits, and is smaller when quick") {
  for (const int64_t context_tokens_max : {4096, 700, 20})
    for (const bool quick : {false, true}) {
      CAPTURE(context_tokens_max);
      CAPTURE(quick);
      ProfileOptions options;
      options.quick = quick;
      options.rows_max = 16;
      options.context_max = 1024;
      std::map<std::string, int> kinds;
      for (const GridPoint& p : profile_grid(options, context_tokens_max)) {
        ++kinds[p.kind];
        for (const SequenceShape& s : p.sequences) {
          CHECK(s.start + s.rows <= context_tokens_max);
          CHECK(s.start <= 1024 + 4);
          CHECK(s.sample_rows <= s.rows);
        }
        CHECK(p.sequences.size() <= (p.kind == "mixed" ? 17 : 16));
      }
      CHECK(kinds["decode"] > 0);
      CHECK(kinds["verify"] > 0);
      if (context_tokens_max > 64) CHECK(kinds["prefill"] > 0);
      if (context_tokens_max > 64) CHECK(kinds["mixed"] > 0);
    }
  const size_t all = profile_grid({}, 4096).size();
  ProfileOptions quick;
  quick.quick = true;
  CHECK(profile_grid(quick, 4096).size() * 2 < all);
  CHECK(profile_grid({}, 1).size() == 1);
}

TEST_CASE("profile: the table names every kind of step and the costs above zero") {
  StepProfile profile;
  StepShape shape;
  shape.add(5, 1, 1);
  profile.points = {{"decode", shape, 100, false}, {"decode", shape, 80, true}};
  profile.cost.us[0] = 90;
  const std::string table = profile_table(profile);
  CAPTURE(table);
  for (const char* part : {"decode", "verify", "prefill", "mixed", "all", "10.0 %", "12.5 %", "90.0000 us per step"})
    CHECK(table.find(part) != std::string::npos);
  CHECK(table.find("us per sequence") == std::string::npos);
}
