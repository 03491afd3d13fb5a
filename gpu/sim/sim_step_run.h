// SimStepRun: the steps that a simulated engine does at once (StepRun in engine.h), without their timers: which sequence is
// in which slot, what each gains in which step, and so when each step ends. Part of SimEngine.
//
// What a sequence gains does not depend on the others; only the time of a step does. So the gains are drawn once, some steps
// ahead, and each step keeps the sum over all sequences. A sequence that joins or leaves is added to these sums or subtracted
// from them; the other sequences are not touched. Pure: no clock. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "gpu/engine.h"
#include "protocols/step_cost.h"

namespace seer {

class SimStepRun {
 public:
  struct Config {
    uint32_t block_tokens = 0;
    int32_t steps_max = 1;
    int64_t draft_ns = 0;  // to make the draft of one sequence, before each step
    std::function<int64_t(const StepShape&)> step_ns;
    std::function<int64_t(uint64_t seed)> last_position;  // of the response with this seed
    /// Says which drafts are accepted (SimEngineConfig).
    std::function<void(uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> accepted)> accepted;
  };
  explicit SimStepRun(Config config);

  /// These do what those of StepRun do.
  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit);
  void leave(int32_t slot);
  std::vector<int32_t> take_block_needs(int64_t steps);

  /// Plans the next steps: up to steps_max, as long as they need no more than blocks_free new KV blocks.
  /// REQUIRES: there is a sequence; block needs of all steps that are over were taken.
  void plan(int64_t steps_max, int64_t blocks_free);
  /// Ends of the steps planned last, from the start of the first.
  const std::vector<int64_t>& ends_ns() const { return ends_ns_; }
  /// Keeps only the first `steps` of them.
  void shorten(size_t steps) { ends_ns_.resize(steps); }
  /// Completes the planned steps. Returns the slots whose sequences do not continue.
  std::vector<int32_t> pass();
  /// Shape of the first planned step; after pass(), of the next step.
  const StepShape& shape() const { return shape_; }

  /// What the sequence in this slot gained in the first `steps` of the planned steps, except what was already taken. Valid
  /// until the next call.
  struct Taken {
    uint64_t seed;
    int64_t steps;
    int64_t position;                 // of the first token
    int64_t tokens;
    std::span<const int32_t> draft;   // the same in each step
    std::span<const int32_t> gained;  // tokens by step; empty without a draft
  };
  Taken take(int32_t slot, int64_t steps);

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  /// Steps are counted from 0 on, over all plans.
  struct Sequence {
    bool here = false;
    bool stopped = false;       // after step drawn - 1
    uint32_t joined = 0;        // counts the sequences of the slot: events of earlier ones are ignored
    int32_t rows = 0;
    int32_t sample_rows = 0;
    uint64_t seed = 0;
    int64_t start = 0;          // where step `drawn` begins
    int64_t drawn = 0;          // steps before this one are known
    int64_t taken_start = 0;    // where step `taken` begins
    int64_t taken = 0;
    int64_t last = kNever;      // position of the response's last token
    int64_t stop = kNever;      // it stops once a step would begin here or later
    int64_t covered = 0;        // positions that its blocks cover, with those of steps that are known
    std::vector<int32_t> draft;
    std::vector<int32_t> gained;  // with a draft: in the steps from `taken` on

    bool has_draft() const { return sample_rows > 1; }
    /// In each step.
    int64_t gains() const { return has_draft() ? 0 : sample_rows; }
  };
  struct Event {
    int32_t slot = 0;
    uint32_t joined = 0;
    bool stops = false;  // the sequence stops; otherwise it needs a block for the next step
  };
  struct Step {
    int64_t kv_tokens = 0, attended = 0;  // gained by all sequences that have a draft
    std::vector<Event> events;
  };

  Sequence& at(int32_t slot) { return sequences_[static_cast<size_t>(slot)]; }
  Step& step_at(int64_t step) { return ring_[static_cast<size_t>(step) & (ring_.size() - 1)]; }
  bool is_here(const Event& event) const;
  void draw(int32_t slot, int64_t end);
  void draw_plain(int32_t slot, int64_t end);
  void draw_drafted(int32_t slot, int64_t end);
  void gain(const Sequence& s, std::span<int32_t> gained) const;
  void draw_all(int64_t end);
  void pass(const Step& step, StepShape& shape) const;
  void add(const Sequence& s, int64_t start, int64_t sign);

  Config config_;
  std::vector<Sequence> sequences_;  // by slot
  int64_t drafted_ = 0;              // sequences that have drafts
  int64_t plain_kv_tokens_ = 0, plain_attended_ = 0;  // gained by the others in each step
  StepShape shape_;
  std::vector<Step> ring_;
  int64_t first_ = 0;                // of the steps that were planned last
  int64_t over_ = 0;                 // steps before this one are completed
  int64_t reported_ = 0;             // block needs of steps before this one were taken
  int64_t drawn_ = 0;
  std::vector<int64_t> ends_ns_;
  std::vector<int32_t> taken_;       // scratch of take()
};

}  // namespace seer
