#include "cli/serve/weights_receiver.h"

#include <utility>

namespace seer {
namespace {

constexpr const char* kPath = "/seer/v1/weights_receiver";
constexpr const char* kContinue = "/continue_generation";
constexpr int64_t kProgressUs = 10'000'000;  // between two signs of life of the stream
constexpr const char* kNoReceiver =
    "no receiver of weights is connected: start python3 -m seer_weights_group, or send weights to /update_weights_from_disk or /seer/v1/weights";

/// As the receiver's upload has it in its query.
Out label_fields(const WeightLabel& label) {
  if (label.number) return {{"version", cat(*label.number)}};
  return label.name.empty() ? Out::object() : Out{{"name", label.name}};
}

/// The memory that a receiver names holds what it says.
bool can_read_memory(const HttpRequest& request) {
  const auto path = request.query.find("memory"), holds = request.query.find("holds");
  if (path == request.query.end() || holds == request.query.end()) return false;
  const auto memory = WeightMemory::open(path->second);
  if (!memory.ok()) return false;
  const Result<std::string> found = (*memory)->read(0, holds->second.size() + 1);
  return found.ok() && *found == holds->second;
}

}  // namespace

bool WeightsReceiver::handle(const HttpRequest& request, const Reply& reply) {
  const bool is_post = request.method == "POST";
  if (request.path == kPath && request.method == "GET") connect(request, reply);
  else if (request.path == kPath && is_post) take_answer(request, reply);
  else if (request.path == kContinue && is_post && (is_passing_ || has_parts_ || !why_failed_.empty())) go_on(reply);
  else if (auto call = group_call_at(request.path); call && call->kind == ServerKind::kSglang && is_post) pass_on(*std::move(call), request, reply);
  else return false;
  return true;
}

void WeightsReceiver::tick(int64_t now_us) {
  if (receiver_ == nullptr || now_us - written_us_ < kProgressUs) return;
  written_us_ = now_us;
  receiver_->write("{}\n");
}

// ---- the receiver ----------------------------------------------------------------------------------------------------------------

void WeightsReceiver::connect(const HttpRequest& request, const Reply& reply) {
  if (receiver_ != nullptr) return reply->send(409, http_error_body("another receiver of weights is connected", 409));
  receiver_ = reply;
  reply->begin("application/x-ndjson");
  reply->write(json_text({{"reads_memory", can_read_memory(request)}}) + "\n");
  reply->on_gone([this] {
    receiver_.reset();
    memory_.reset();
    const Status gone = fail(Code::kUnavailable, "the receiver of weights has gone");
    if (std::exchange(has_parts_, false)) why_failed_ = gone.error().detail;
    if (asked_) answered(gone);
  });
}

void WeightsReceiver::take_answer(const HttpRequest& request, const Reply& reply) {
  const auto refuse = [&reply](const Error& error) { reply->send(400, http_error_body(error.detail)); };
  const Result<Json> body = read_object(request.body);
  if (!body.ok()) return refuse(body.error());
  const Result<int64_t> call = int64_field(*body, "call", 0, 1);
  if (!call.ok()) return refuse(call.error());
  const Result<bool> success = boolean_field(*body, "success", false);
  if (!success.ok()) return refuse(success.error());
  const Result<std::string> message = text_field(*body, "message");
  if (!message.ok()) return refuse(message.error());
  const Result<std::string> memory = text_field(*body, "memory");
  if (!memory.ok()) return refuse(memory.error());
  const Result<bool> parts_lost = boolean_field(*body, "parts_lost", false);
  if (!parts_lost.ok()) return refuse(parts_lost.error());
  if (!asked_ || static_cast<int64_t>(asked_->call) != *call) return reply->send(409, http_error_body(cat("call ", *call, " is not under way"), 409));
  if (*parts_lost) {
    has_parts_ = false;
    why_failed_.clear();
  }
  Status status = *success ? Status() : fail(Code::kUnavailable, *message);
  if (!memory->empty()) {
    Result<std::shared_ptr<WeightMemory>> opened = WeightMemory::open(*memory);
    if (opened.ok()) memory_ = *std::move(opened);
    else status = opened.error();
  }
  reply->send(200, "{}");
  answered(status);
}

void WeightsReceiver::ask(Out line, const Reply& reply, std::function<void(const Status&)> then) {
  is_passing_ = true;
  asked_ = Asked{.call = ++last_call_, .then = std::move(then)};
  if (receiver_ == nullptr) return answered(fail(Code::kUnavailable, kNoReceiver));
  line["call"] = last_call_;
  receiver_->write(json_text(line) + "\n");
  if (line["path"] == kContinue) return;  // the weights change whether or not anybody waits for it
  reply->on_gone([this, call = last_call_] {
    if (asked_ && asked_->call == call && receiver_ != nullptr) receiver_->write(json_text({{"cancel", call}}) + "\n");
  });
}

void WeightsReceiver::answered(const Status& status) {
  is_passing_ = false;
  const auto then = std::move(asked_->then);
  asked_.reset();
  then(status);
}

// ---- the trainer -----------------------------------------------------------------------------------------------------------------

void WeightsReceiver::pass_on(GroupCall call, const HttpRequest& request, const Reply& reply) {
  if (const Status read = read_group_call(call, request); !read.ok()) return refuse(call, reply, read.error().detail);
  if (receiver_ == nullptr) return refuse(call, reply, cat(call.path, ": ", kNoReceiver));
  if (is_passing_) return refuse(call, reply, cat(call.path, ": another call of this kind is under way"));
  is_passing_ = true;
  if (call.changes_weights()) {
    return check_paused(front_, call.path, false, [this, call, reply](const Status& paused) {
      is_passing_ = false;
      if (paused.ok()) take_part(call, reply);
      else refuse(call, reply, paused.error().detail);
    });
  }
  ask({{"path", call.path}, {"body", std::move(call.body)}}, reply, [reply](const Status& status) {
    answer_trainer(reply, status.ok(), status.ok() ? "Succeeded." : status.error().detail);
  });
}

void WeightsReceiver::take_part(const GroupCall& call, const Reply& reply) {
  Result<WeightLabel> label = read_trainer_label("weight_version", version_of(call), front_.version());
  if (!label.ok()) return refuse(call, reply, label.error().detail);
  if (has_parts_ && *label != label_) return refuse(call, reply, cat(call.path, ": the parts before have another weight_version"));
  label_ = *std::move(label);
  ask({{"path", call.path}, {"body", call.body}, {"label", label_fields(label_)}}, reply, [this, reply](const Status& status) {
    has_parts_ = status.ok();
    why_failed_ = status.ok() ? "" : status.error().detail;
    answer_trainer(reply, status.ok(), status.ok() ? "Succeeded to receive weights." : status.error().detail);
  });
}

void WeightsReceiver::refuse(const GroupCall& call, const Reply& reply, const std::string& why) {
  if (call.changes_weights()) {  // the trainer broadcasts its tensors all the same
    if (std::exchange(has_parts_, false)) why_failed_ = why;
    if (receiver_ != nullptr) receiver_->write(json_text({{"leave", why}}) + "\n");
  }
  answer_trainer(reply, false, why);
}

/// All parts were sent: they become the weights.
void WeightsReceiver::go_on(const Reply& reply) {
  if (is_passing_) return answer_trainer(reply, false, "a part of new weights is under way");
  if (!has_parts_) return stay_paused(std::exchange(why_failed_, ""), reply);
  ask({{"path", kContinue}}, reply, [this, reply](const Status& status) {
    if (!status.ok() || memory_ == nullptr) return end_update({status}, reply);
    is_passing_ = true;
    has_parts_ = false;  // the server has all of them, whatever becomes of the receiver
    uploads_.update(std::exchange(memory_, nullptr), InFlight::kRedo, label_, [this, reply](const WeightsDone& done) {
      is_passing_ = false;
      end_update(done, reply);
    });
  });
}

void WeightsReceiver::end_update(const WeightsDone& done, const Reply& reply) {
  has_parts_ = false;
  if (!done.status.ok()) return stay_paused(done.status.error().detail, reply);
  continue_generation(front_, reply, cat("Generation continued with weight version ", front_.version_label(front_.version()), done.who_is_out(), "."));
}

void WeightsReceiver::stay_paused(const std::string& why, const Reply& reply) {
  answer_trainer(reply, false, cat("generation is still paused with weight version ", front_.version_label(front_.version()), ": ", why));
}

}  // namespace seer
