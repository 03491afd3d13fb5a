// InstanceBench: the plain parts of an instance without its actor, with an engine that computes at once.
#pragma once
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "actors/instance/kv_moves.h"
#include "actors/instance/running_batch.h"
#include "actors/instance/sequence.h"
#include "gpu/row_engine.h"
#include "gpu/slot_engine.h"

namespace seer {

struct InstanceBench {
  explicit InstanceBench(int32_t device_blocks = 16, size_t queue_max = 64)
      : rows(std::make_shared<RowEngine>(device_blocks, queue_max)),
        slots(with_slots(rows)),
        info(rows->info()),
        devices(info.device_blocks, info.block_tokens),
        engine(*slots),
        kv({.headroom_tokens = 4, .offer_blocks = 2}, info, devices, sequences, engine,
           *HostArena::create({.dram_bytes = 64 * 64, .block_bytes = 64}),
           [this](KvMoves::ToPool message) { told.push_back(std::move(message)); }) {}

  /// A sequence with this many known tokens, the first `prompt_tokens` of them its prompt.
  Sequence& add(uint64_t chunk, int64_t tokens, int64_t prompt_tokens, bool has_pool = true) {
    auto sampling = std::make_shared<SamplingParams>();
    sampling->max_tokens = 1000;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t own = i < prompt_tokens ? 0 : 1000 * static_cast<int64_t>(chunk);
      ids.push_back(static_cast<int32_t>(own + i));
    }
    const TokenLog log(ids, prompt_tokens);
    auto s = std::make_unique<Sequence>(StopRule(*sampling, {info.eos_ids, info.context_tokens_max}, log, {}));
    s->chunk = ChunkId{chunk};
    s->request = {GroupId{0}, static_cast<uint32_t>(chunk)};
    s->version = WeightVersion{1};
    s->sampling = sampling;
    s->log = log;
    s->reported_tokens = tokens;
    s->end_tokens = tokens + 1000;
    s->yield_rank = chunk;
    s->has_pool = s->keep_kv = has_pool;
    return sequences.add(std::move(s));
  }
  /// The messages to the pool of this type, oldest first.
  template <class Message>
  std::vector<Message> told_of() const {
    std::vector<Message> all;
    for (const KvMoves::ToPool& message : told)
      if (const auto* m = std::get_if<Message>(&message)) all.push_back(*m);
    return all;
  }
  /// The result of the copy that was submitted last.
  CopyResult copy_result() {
    std::vector<EngineResult> results = engine.take_results();
    for (size_t i = 0; i < results.size(); ++i) engine.result_handled();
    return std::get<CopyResult>(results.back());
  }

  std::shared_ptr<RowEngine> rows;
  std::shared_ptr<Engine> slots;
  const EngineInfo info;
  DeviceBlocks devices;
  EngineQueue engine;
  SequenceTable sequences;
  std::vector<KvMoves::ToPool> told;
  KvMoves kv;
};

}  // namespace seer
