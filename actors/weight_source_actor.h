// weight_source_actor: weights that a client sent to this process, for machines of a cluster that read them part by part. One for
// each upload, as long as some machine may need it: those that join later read it too.
#pragma once
#include <memory>

#include "gpu/model/weight_memory.h"
#include "protocols/actors.h"

namespace seer {

struct WeightSourceActor {
  using handle = WeightSourceHandle;
  static constexpr const char* kActorName = "weight_source";

  WeightSourceActor(rt::self_ptr<WeightSourceActor> self_in, std::shared_ptr<const WeightMemory> memory_in)
      : self(self_in), memory(std::move(memory_in)) {}
  handle::behavior_type make_behavior();

  rt::self_ptr<WeightSourceActor> self;
  const std::shared_ptr<const WeightMemory> memory;
};

}  // namespace seer
