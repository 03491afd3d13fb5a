// ServedRollouts: rollouts that clients of `seer serve` have open: their groups, and their responses by sequence number until they are
// acknowledged, whoever is connected meanwhile. With a journal they outlive the process. It knows nothing of HTTP and of the gateway:
// NativeDialect reads requests, has groups run, and gives the responses. Single owner, not thread-safe, but for sync().
//
// Always true:
//  (1) responses of a rollout are numbered from 1 in the order in which they were given, without a gap, also over restarts;
//  (2) each request is answered once: a response that comes again, or of a rollout that is not there, is dropped. Where a rollout
//      streams groups, the responses of a group are given together, and the line of the last one has them all;
//  (3) a response that is not acknowledged is kept, unless its rollout was forgotten: by a client, or for room once it was over and
//      some stream had been sent all of it;
//  (4) a stream gets each response after its beginning once, in order, and `done` after the last one of a rollout that is over.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/serve/rollouts_journal.h"
#include "protocols/result.h"
#include "storage/served_journal.h"

namespace seer {

struct ServedLimits {
  size_t rollouts_max = 256;
  size_t bytes_max = size_t{1} << 30;    // of responses that are kept, and of prompts whose responses are not all given
  size_t responses_max = 500'000;        // asked for and not given yet, of all rollouts
};

/// Where a stream goes. Calls come from within those of ServedRollouts, and may unsubscribe.
class LineSink {
 public:
  virtual ~LineSink() = default;
  virtual bool has_room() const = 0;
  virtual void write(std::string_view part) = 0;  // of a line, or a whole one
  virtual void end() = 0;                         // nothing is written after it
};

/// Figures of a rollout, for its client.
struct ServedState {
  std::string id;
  bool is_open = false, is_over = false, is_stopped = false;  // stopped: by its ServedStop
  size_t groups = 0;
  uint64_t responses = 0, given = 0;              // asked for; of them given so far: the last sequence number
  uint64_t aborted = 0, failed = 0;               // of those given
  int64_t output_tokens = 0;                      // likewise
  uint64_t acknowledged = 0;
  std::string waits_for;                          // what its client calls the weights that its groups wait for; empty: they do not wait
};

/// Weights that run.
struct RunningWeights {
  WeightVersion version;
  std::string name;          // that a client gave them; empty: none
  bool is_first = false;     // this process began with them
  bool were_marked = false;  // and the process before it ended with them, under the same number, as in a cluster that ran on
};
/// What becomes of the groups of a rollout now.
enum class Turn : uint8_t {
  kRuns,
  kWaits,   // the weights that it expects may come
  kIsOver,  // others came
};
/// A rollout that expects a number waits while the version is below it. One that expects a name waits after a restart, since names are
/// not kept: the next weights decide, because names have no order.
Turn turn_of(const ServedHead& head, const RunningWeights& now);

/// A group of which some responses are to be made.
struct ServedWork {
  uint64_t rollout = 0;
  uint32_t group = 0;
  std::vector<uint32_t> samples;
  std::vector<CommittedTokens> begun;  // what there is of some of them
};

class ServedRollouts {
 public:
  /// `journal`: null: rollouts end with the process.
  explicit ServedRollouts(ServedLimits limits, std::unique_ptr<ServedJournal> journal = nullptr);
  /// Takes in what the journal has. Returns what is to be run. Once, before all else.
  Result<std::vector<ServedWork>> restore();
  bool has_journal() const { return journal_.is_there(); }
  const ServedLimits& limits() const { return limits_; }

  // ---- clients. Errors: kNotFound: no such rollout or group; kStale: it is not what the client takes it for; kFull: there is no room ----
  /// Null: there is none.
  const ServedHead* find(const std::string& id) const;
  /// A rollout with its first groups. head.number is filled in. REQUIRES: there is none of this id.
  Result<std::vector<ServedWork>> create(ServedHead head, std::vector<ServedGroup> groups);
  /// `first`: the number that the first of them is to have, if the client says; where these groups are there already, nothing is to run.
  Result<std::vector<ServedWork>> add(const std::string& id, std::vector<ServedGroup> groups, std::optional<uint64_t> first = {});
  /// No more groups will come.
  Status close(const std::string& id);
  /// Responses up to this one are not needed any more.
  Status acknowledge(const std::string& id, uint64_t seq);
  /// The rollout is not needed any more; its streams end. Returns its number.
  Result<uint64_t> forget(const std::string& id);
  /// The group that a client calls so: by its id, or where it has none by its number.
  Result<uint32_t> find_group(const std::string& id, const std::string& name) const;
  Result<ServedState> state(const std::string& id) const;
  std::vector<ServedState> states() const;

  // ---- what runs ---------------------------------------------------------------------------------------------------------------
  /// REQUIRES: the rollout is there.
  const ServedHead& head(uint64_t rollout) const { return rollouts_.at(rollout).head; }
  /// Null: none is there, or all of its responses were given.
  const ServedGroup* group(uint64_t rollout, uint32_t group) const;
  void commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version);
  /// `response`: its seq and line are filled in. `line`: an object of at least one member, and a newline; seq is added to it.
  void finish(uint64_t rollout, ServedResponse response, std::string_view line);
  /// The rollouts that are to end now by their ServedStop, each once. They take no more groups.
  std::vector<uint64_t> take_stopped(int64_t now_us);
  /// Other weights are served from now on: a restart goes on from tokens of these.
  void set_mark(const ServedModelMark& mark) { journal_.set_mark(mark); }
  /// Whether what restore() gave was begun with the weights of this process's start, under the same version.
  bool had_same_weights() const { return had_same_weights_; }
  /// Whether groups of it wait for the weights that it expects; for its state. REQUIRES: the rollout is there.
  void set_waits(uint64_t rollout, bool waits) { rollouts_.at(rollout).waits = waits; }

  // ---- streams -----------------------------------------------------------------------------------------------------------------
  /// A stream of responses from this one on; without it, from the first that is not acknowledged. `progress_us` between two lines about
  /// progress; 0: none. Returns its number. kInvalidArgument: there is no such response, or it was acknowledged.
  Result<uint64_t> subscribe(const std::string& id, std::optional<uint64_t> from_seq, std::shared_ptr<LineSink> sink, int64_t progress_us);
  /// Writes what there is while the sink has room.
  void pump(uint64_t stream);
  void unsubscribe(uint64_t stream) { streams_.erase(stream); }
  /// Writes lines about progress that are due, and tries a journal that failed again. Called every now and then.
  void tick(int64_t now_us);

  /// Why the journal cannot be written. What runs goes on, and is written later. When groups come the journal is tried again; they are
  /// refused if it still fails.
  const Status& journal_failed() const { return journal_.failed(); }
  /// Makes what the journal has safe from a crash of the machine. Thread-safe.
  Status sync() { return journal_.sync(); }

 private:
  struct Group {
    ServedGroup spec;  // emptied once all responses were given
    std::vector<bool> is_given;
    uint32_t left = 0;
    bool is_whole = true;  // no response was cut short, or failed, so far
    std::map<uint32_t, ServedResponse> held;  // by sample, until the whole group is there
    uint64_t hash = 0;     // of what it was
  };
  struct Rollout {
    ServedHead head;
    std::deque<Group> groups;
    std::map<std::string, uint32_t> group_of_id;  // by id as JSON
    std::deque<ServedResponse> given;             // without lines
    std::deque<std::shared_ptr<const std::string>> lines;  // of those that are not acknowledged
    ServedState state;
    size_t bytes = 0;           // of lines, and of groups that are not over
    uint64_t whole_groups = 0;
    int64_t came_us = -1;       // when take_stopped() saw it first
    bool is_delivered = false;  // after its end some stream was sent all of it
    bool waits = false;
    uint64_t left() const { return state.responses - state.given; }
    bool is_over() const { return !head.is_open && left() == 0; }
    bool must_stop(int64_t now_us) const;
  };
  struct Stream {
    uint64_t rollout = 0, next_seq = 1;
    std::shared_ptr<LineSink> sink;
    int64_t progress_us = 0, progress_due_us = 0;
    std::shared_ptr<const std::string> line;  // of which `written` bytes were written
    size_t written = 0;
  };

  Rollout* rollout_of(const std::string& id);
  const Rollout* rollout_of(const std::string& id) const;
  Status make_room(size_t bytes, size_t rollouts);
  Status check_new(const Rollout& rollout, const std::vector<ServedGroup>& groups) const;
  std::vector<ServedWork> take_in(Rollout& rollout, std::vector<ServedGroup> groups);
  void hold(Rollout& rollout, ServedResponse response);
  void give(Rollout& rollout, std::vector<ServedResponse> responses);
  void take_in_response(Rollout& rollout, ServedResponse response);
  void let_go(Rollout& rollout, Group& group);
  void erase(uint64_t number);
  void pump_all(uint64_t rollout);
  void end_stream(uint64_t stream, const std::string& line);
  Status mend_journal();

  const ServedLimits limits_;
  RolloutsJournal journal_;
  bool had_same_weights_ = false;
  std::map<uint64_t, Rollout> rollouts_;  // by number
  std::map<std::string, uint64_t> number_of_;
  std::map<uint64_t, Stream> streams_;
  uint64_t last_number_ = 0, last_stream_ = 0;
  size_t bytes_ = 0;
  uint64_t open_responses_ = 0;
};

/// {"type":"done",...} and a newline.
std::string served_state_line(const char* type, const ServedState& state);

}  // namespace seer
