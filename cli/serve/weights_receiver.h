// WeightsReceiver: weights for engines of Seer that a trainer sends over a communication group of its own (served/weights_group.h). The
// member of the group is a process beside the server, the receiver (deploy/client/seer_weights_group.py). It hears of the trainer's
// calls here, and sends what comes over the group to this server (weight_uploads.h).
//
//   GET  /seer/v1/weights_receiver    the receiver's stream of JSON lines, as long as it is there:
//                                     {"reads_memory": true}  the first; see below
//                                     {"call": 7, "path": "/update_weights_from_distributed", "body": {...}, "label": {"version": "12"}}
//                                     {"cancel": 7}    the trainer does not wait for call 7 any more
//                                     {"leave": "..."} a part was refused, so that its tensors are still under way in the group
//                                     {}               nothing new
//   POST /seer/v1/weights_receiver    its answer: {"call": 7, "success": true, "message": "..."}; with "parts_lost": true a trainer began
//                                     anew, and what the one before had sent is not there any more
//
// On the server's host nothing is sent. The receiver says `?memory=/proc/PID/fd/N&holds=TEXT`, and if that memory, which is sealed, can
// be read here and holds this text, it may leave weights in such memory as well (WeightMemory::open).
//
// Weights come in parts, which only /continue_generation ends: the receiver gets it as a call as well, completes its upload or answers
// with the `memory` that has the weights, and they change whole or not at all. If a part or the whole fails, generation stays paused with
// the old weights, and the trainer is told. One receiver, and one call at a time. All of it runs on the HTTP server's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/serve/front.h"
#include "cli/serve/group_calls.h"
#include "cli/serve/http_server.h"
#include "cli/serve/request_fields.h"
#include "cli/serve/weight_uploads.h"
#include "served/weights_group.h"

namespace seer {

class WeightsReceiver {
 public:
  WeightsReceiver(Front& front, WeightUploads& uploads) : front_(front), uploads_(uploads) {}
  /// False: the request is not about it.
  bool handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  /// Called now and then.
  void tick(int64_t now_us);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void connect(const HttpRequest& request, const Reply& reply);
  void take_answer(const HttpRequest& request, const Reply& reply);
  void pass_on(GroupCall call, const HttpRequest& request, const Reply& reply);
  void take_part(const GroupCall& call, const Reply& reply);
  /// Answers a call that the receiver has not got.
  void refuse(const GroupCall& call, const Reply& reply, const std::string& why);
  void go_on(const Reply& reply);
  void end_update(const WeightsDone& done, const Reply& reply);
  /// The weights have not changed.
  void stay_paused(const std::string& why, const Reply& reply);
  /// Passes a call on to the receiver. `then` gets its answer; only after that the next call is taken.
  void ask(Out line, const Reply& reply, std::function<void(const Status&)> then);
  void answered(const Status& status);

  struct Asked {
    uint64_t call = 0;
    std::function<void(const Status&)> then;
  };
  Front& front_;
  WeightUploads& uploads_;
  Reply receiver_;                              // its stream; null: there is none
  int64_t written_us_ = 0;                      // when the stream had its last sign of life
  uint64_t last_call_ = 0;
  bool is_passing_ = false;                     // a call is under way
  std::optional<Asked> asked_;                  // the receiver has it
  bool has_parts_ = false;                      // the receiver has parts of new weights
  WeightLabel label_;                           // what the trainer calls them
  std::shared_ptr<const WeightMemory> memory_;  // that the receiver has answered with
  std::string why_failed_;                      // parts are lost, and generation has not continued since
};

}  // namespace seer
