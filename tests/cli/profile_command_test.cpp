#include "cli/profile_command.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <set>

#include "cli/scratch.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/tiny_model.h"

using namespace seer;

namespace {

/// A quick profile of a tiny model on this device, into `out`.
Status profile_tiny(DeviceKind device, const std::string& out) {
  TestFolder model;
  write_tiny_model(model.path(), tiny_config("qwen3"), "BF16", 1);
  ProfileOptions options;
  options.model = model.path();
  options.out = out;
  options.device = device;
  options.quick = true;
  options.rows_max = 2;
  options.context_max = 16;
  options.repeats = 1;
  const std::atomic<bool> stop = false;
  return profile_command(options, stop);
}

}  // namespace

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

TEST_CASE("profile: without a GPU --device cuda is one sentence, and no file is written") {
  if (const auto devices = cuda::count_cuda_devices(); devices.ok() && *devices > 0) return;
  ScratchFolder folder;
  CHECK(profile_tiny(DeviceKind::kCuda, folder.path("profile.json")).error().code == Code::kUnavailable);
  CHECK(!std::filesystem::exists(folder.path("profile.json")));
}

#ifdef SEER_HAVE_SIMT
TEST_CASE("profile: of an emulated GPU names the device, and no threads") {
  ScratchFolder folder;
  REQUIRE(profile_tiny(DeviceKind::kSimt, folder.path("profile.json")).ok());
  const auto profile = read_step_profile(folder.path("profile.json"));
  REQUIRE(profile.ok());
  CHECK(profile->isa == "simt");
  CHECK(profile->threads == 0);
  CHECK(!profile->points.empty());
}
#endif
