#include "cli/serve/weight_uploads.h"

#include <utility>

#include "cli/serve/request_fields.h"

namespace seer {
namespace {

constexpr int64_t kLayerTensorsMax = 18, kOtherTensorsMax = 3;
constexpr uint64_t kSilenceMaxS = 86'400;
constexpr int64_t kTensorHeaderBytes = 1024;  // allowed for each tensor: its name, dtype, shape, offsets, and a header of its own

std::string query_text(const HttpRequest& head, const std::string& name) {
  const auto at = head.query.find(name);
  return at == head.query.end() ? "" : at->second;
}

}  // namespace

class WeightUploads::Upload final : public HttpUpload {
 public:
  Upload(WeightUploads& owner, const HttpRequest& head, std::optional<uint64_t> body_bytes, bool is_alone)
      : owner_(owner),
        names_(check_query(head, {"version", "name", "mode", "silence_s"})),
        label_(read_label(head)),
        mode_(read_update_mode(query_text(head, "mode"))),
        silence_s_(query_number(head, "silence_s", 1, kSilenceMaxS)),
        body_bytes_(body_bytes),
        is_alone_(is_alone) {}

  std::optional<HttpRefusal> take(std::string_view part) override {
    if (memory_ == nullptr)
      if (auto refusal = begin()) return refusal;
    if (memory_->bytes() + part.size() > owner_.bytes_max_) return too_large();
    if (const Status kept = memory_->append(part); !kept.ok()) return HttpRefusal{503, kept.error().detail};
    return {};
  }

  int64_t silence_s() const override { return silence_s_.ok() ? static_cast<int64_t>(silence_s_->value_or(0)) : 0; }

  void finish(std::shared_ptr<HttpReply> reply) override {
    if (owner_.front_.is_updating()) return reply->send(409, http_error_body(kUpdateIsUnderWay));  // one from a folder came before
    owner_.update(std::move(memory_), *mode_, *label_, [&front = owner_.front_, reply](const WeightsDone& done) {
      if (!done.status.ok()) return reply->send(400, http_error_body(done.status.error().detail));
      Out answer{{"weight_version", front.version_label(front.version())}};
      if (!done.out.empty()) answer["out"] = done.out;
      reply->send(200, json_text(answer));
    });
  }

 private:
  static Result<WeightLabel> read_label(const HttpRequest& head) {
    const std::string name = query_text(head, "name");
    if (!name.empty() && !query_text(head, "version").empty())
      return fail(Code::kInvalidArgument, "both version and name: expected one of them");
    return name.empty() ? read_weight_label("version", query_text(head, "version")) : read_weight_name("name", name);
  }

  /// All that can be known before any of the body has come.
  std::optional<HttpRefusal> begin() {
    if (owner_.machines_.servers() != nullptr)
      return HttpRefusal{501, "weights in a request do not reach the servers of --engines: give a folder that they read (/update_weights_from_disk)"};
    if (!names_.ok()) return HttpRefusal{400, names_.error().detail};
    if (!mode_.ok()) return HttpRefusal{400, mode_.error().detail};
    if (!silence_s_.ok()) return HttpRefusal{400, silence_s_.error().detail};
    if (!label_.ok()) return HttpRefusal{400, label_.error().detail};
    if (const WeightVersion runs = owner_.front_.version(); label_->number && *label_->number <= runs)
      return HttpRefusal{400, cat("weight version ", *label_->number, ": expected one above ", runs, ", which runs")};
    if (!is_alone_ || owner_.front_.is_updating()) return HttpRefusal{409, kUpdateIsUnderWay};
    if (body_bytes_.value_or(0) > owner_.bytes_max_) return too_large();
    Result<std::shared_ptr<WeightMemory>> memory = WeightMemory::create();
    if (!memory.ok()) return HttpRefusal{503, memory.error().detail};
    memory_ = *std::move(memory);
    return {};
  }

  HttpRefusal too_large() const {
    return {413, cat("the body is larger than ", owner_.bytes_max_, " bytes, which the weights of ", owner_.front_.model().name,
                     " can take in safetensors files: expected tensors of their dtype")};
  }

  WeightUploads& owner_;
  const Status names_;
  const Result<WeightLabel> label_;
  const Result<InFlight> mode_;
  const Result<std::optional<uint64_t>> silence_s_;
  const std::optional<uint64_t> body_bytes_;
  const bool is_alone_;
  std::shared_ptr<WeightMemory> memory_;
};

uint64_t weight_bytes_max(const Model* model, const ModelConfig& config) {
  if (model != nullptr) return static_cast<uint64_t>(model->stored_bytes_max + model->stored_tensors * kTensorHeaderBytes);
  const auto bytes = config.parameters_max() * static_cast<int64_t>(sizeof(float));
  return static_cast<uint64_t>(bytes + (config.layers * kLayerTensorsMax + kOtherTensorsMax) * kTensorHeaderBytes);
}

WeightUploads::WeightUploads(HttpServer& http, Front& front, ServedMachines& machines, uint64_t bytes_max)
    : http_(http), front_(front), machines_(machines), bytes_max_(bytes_max) {}

void WeightUploads::update(std::shared_ptr<const WeightMemory> memory, InFlight in_flight, const WeightLabel& label,
                           std::function<void(const WeightsDone&)> then) {
  const std::string name = cat("upload ", ++last_number_);
  front_.reserve_update();  // one that comes meanwhile hears so
  http_.put_aside([this, name, memory = std::move(memory), in_flight, label, then = std::move(then)]() mutable {
    Result<NewWeights> weights = machines_.offer_weights(name, std::move(memory));
    http_.post([this, name, weights = std::move(weights), in_flight, label, then = std::move(then)]() mutable {
      front_.end_reservation();
      if (!weights.ok()) return then({weights.error()});
      front_.update_weights(*std::move(weights), in_flight, label, [this, name, then = std::move(then)](const WeightsDone& done) {
        machines_.withdraw_weights(name);
        then(done);
      });
    });
  });
}

std::shared_ptr<HttpUpload> WeightUploads::open(const HttpRequest& head, std::optional<uint64_t> body_bytes) {
  if (head.path != "/seer/v1/weights" || (head.method != "POST" && head.method != "PUT")) return nullptr;
  const bool is_alone = open_.expired();
  const auto upload = std::make_shared<Upload>(*this, head, body_bytes, is_alone);
  if (is_alone) open_ = upload;
  return upload;
}

}  // namespace seer
