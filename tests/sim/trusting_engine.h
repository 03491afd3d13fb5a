// TrustingEngine: a planted bug. It imports KV blocks without checking their checksums, and says that they were right.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/engine.h"
#include "protocols/kv.h"

namespace seer {

class TrustingEngine final : public Engine {
 public:
  explicit TrustingEngine(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const EngineInfo& info() const override { return engine_->info(); }
  void set_notify(std::function<void()> notify) override { engine_->set_notify(std::move(notify)); }

  void submit(EngineWork work) override {
    auto* copy = std::get_if<CopyBatch>(&work);
    if (copy != nullptr && copy->direction == CopyBatch::Direction::kImport)
      for (BlockCopy& block : copy->blocks) {
        expected_[copy->id].push_back(block.crc32c);
        block.crc32c = crc32c(block.host);
      }
    engine_->submit(std::move(work));
  }
  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = engine_->take_results();
    for (EngineResult& result : results)
      if (auto* copy = std::get_if<CopyResult>(&result))
        if (auto expected = expected_.extract(copy->id)) copy->crc32c = std::move(expected.mapped());
    return results;
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::map<uint64_t, std::vector<uint32_t>> expected_;  // checksums by import
};

}  // namespace seer
