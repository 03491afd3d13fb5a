#include "actors/weight_source_actor.h"

namespace seer {

WeightSourceActor::handle::behavior_type WeightSourceActor::make_behavior() {
  return {[this](const ReadWeights& ask) {
    Result<std::string> bytes = memory->read(ask.offset, kWeightPartBytes);
    // Nothing is what the machine does not expect, so it gives up.
    rt::tell(self, ask.reply_to, WeightPart{ask.version, ask.offset, bytes.ok() ? *std::move(bytes) : std::string()});
  }};
}

}  // namespace seer
