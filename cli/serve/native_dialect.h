// Seer's own interface: whole rollouts, in the lines that `seer rollout` reads and writes. A rollout goes on whoever is connected; its
// responses are streamed as JSON lines, numbered by "seq", to any client that asks for them from a number on.
//
//   POST   /seer/v1/rollouts                     the first line makes the rollout: {"rollout_id"?, "open"?, "seed"?, "defaults"?,
//                                                "stop_when"?, ...};
//                                                the others are prompt lines. Answered with the stream. The same request again, after
//                                                a lost connection, attaches to the rollout that is there
//   GET    /seer/v1/rollouts                     all that are kept
//   GET    /seer/v1/rollouts/ID?from_seq=N       the stream from this response on
//   GET    /seer/v1/rollouts/ID/progress         figures
//   POST   /seer/v1/rollouts/ID/groups           more prompt lines, for one that is open
//   DELETE /seer/v1/rollouts/ID/groups/GROUP     its responses end with the tokens that they have
//   POST   /seer/v1/rollouts/ID/close            no more groups come (also /finish)
//   POST   /seer/v1/rollouts/ID/ack              {"seq": N}: responses up to this one may be forgotten
//   DELETE /seer/v1/rollouts/ID                  it ends, and is forgotten; with on_cancel=return_partial as if each group was cancelled
//
// Groups of a rollout that expects a weight version begin while that one runs (turn_of()). After a restart they may have to wait here for
// it: the gateway does not know of them then, and what ends its requests does not end them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/log.h"
#include "cli/chat_prompts.h"
#include "cli/serve/front.h"
#include "cli/serve/served_rollouts.h"

namespace seer {

class NativeDialect {
 public:
  /// `chat`: null: the model has no chat template.
  NativeDialect(Front& front, std::shared_ptr<const ChatPrompts> chat, ServedRollouts& rollouts, EventLog log = {});
  /// False: the path is not of this dialect.
  bool handle(HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  /// Goes on with what another process left. `version`: of the weights that made what was begun.
  void resume(std::vector<ServedWork> work, WeightVersion version);
  /// Stops rollouts whose time has come, and begins groups whose weights have come. Called every now and then, and after each response.
  void tick(int64_t now_us);

 private:
  struct StreamOptions {
    std::optional<uint64_t> from_seq;
    int64_t progress_us = 0;
  };
  static Result<StreamOptions> read_stream_options(const HttpRequest& request);
  using Reply = std::shared_ptr<HttpReply>;
  using GroupKey = std::pair<uint64_t, uint32_t>;  // number of the rollout, and the group's in it
  void create(HttpRequest& request, const Reply& reply);
  void begin(ServedHead head, const std::optional<std::string>& expected_version, std::vector<ServedGroup> groups, const StreamOptions& options,
             const Reply& reply);
  void attach(const HttpRequest& request, const std::string& id, const Reply& reply);
  void list(const Reply& reply);
  void stream(const std::string& id, const StreamOptions& options, bool is_accepted, const Reply& reply);
  void add(HttpRequest& request, const std::string& id, const Reply& reply);
  /// `begin`: number of the first of them, `first`: as the client says it.
  void add_groups(const std::string& id, std::vector<ServedGroup> groups, uint64_t begin, std::optional<uint64_t> first, const Reply& reply);
  void acknowledge(const HttpRequest& request, const std::string& id, const Reply& reply);
  void cancel_group(const std::string& id, const std::string& name, const Reply& reply);
  void remove(const HttpRequest& request, const std::string& id, const Reply& reply);
  /// Answers with the rollout's figures.
  void answer(const std::string& id, const Status& done, const Reply& reply);
  /// Has these groups of one rollout run, wait or end, as its expected weights say.
  void run(std::vector<ServedWork> work, WeightVersion version = {});
  void begin_groups(std::vector<ServedWork> work, WeightVersion version);
  void wait(uint64_t rollout, std::vector<ServedWork> work);
  /// Groups that wait are looked at again.
  void run_waiting();
  /// Ends groups that wait, or this one of them. False: there is none.
  bool abort_waiting(uint64_t rollout, std::optional<uint32_t> group = {});
  /// Answers groups of which no token is made here. `error`: with kError.
  void end_unmade(const std::vector<ServedWork>& work, FinishReason finish, const std::string& error = {});
  RunningWeights weights() const;
  void on_response(const ServedWork& work, uint32_t sample, const Response& response);
  void give(const ServedWork& work, uint32_t sample, const Response& response);
  std::vector<Ticket> tickets_of(uint64_t rollout) const;

  Front& front_;
  const std::shared_ptr<const ChatPrompts> chat_;
  ServedRollouts& rollouts_;
  const EventLog log_;
  const WeightVersion first_version_;   // that this process began with
  std::map<GroupKey, Ticket> tickets_;  // of groups that the gateway has
  std::map<uint64_t, std::vector<ServedWork>> waiting_;  // groups that wait for weights, by the number of their rollout
  uint64_t last_name_ = 0;              // of those that clients gave none
  int64_t now_us_ = -1;                 // at the last tick; -1: there was none
};

}  // namespace seer
