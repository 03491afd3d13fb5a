// WeightUploads: new weights that a client sends over HTTP, kept in memory until the engines have loaded them, here or in a cluster.
//
//   POST /seer/v1/weights?version=V&mode=M      the body: one or several safetensors files, each right after the one before
//   POST /seer/v1/weights?name=V&mode=M         V is a name, even if it is a number
//   POST /seer/v1/weights?silence_s=S           the client may pause for S seconds, instead of HttpServerConfig::request_s
//
// The body is the whole update: until its end has come nothing changes, and if the client breaks off its memory is freed. After
// that it takes the way of weights from a folder. One upload at a time. All of it runs on the HTTP server's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "cli/serve/served_machines.h"

namespace seer {

/// Bytes that weights of this model can take in safetensors, headers included. `model` null: their dtype is not known.
uint64_t weight_bytes_max(const Model* model, const ModelConfig& config);

class WeightUploads {
 public:
  /// `bytes_max`: that weights of the model can take. REQUIRES: the others outlive it.
  WeightUploads(HttpServer& http, Front& front, ServedMachines& machines, uint64_t bytes_max);
  /// Null: the request is no upload.
  std::shared_ptr<HttpUpload> open(const HttpRequest& head, std::optional<uint64_t> body_bytes);
  /// Changes to the weights in this memory; `then` gets what became of it.
  void update(std::shared_ptr<const WeightMemory> memory, InFlight in_flight, const WeightLabel& label, std::function<void(const WeightsDone&)> then);

 private:
  class Upload;
  HttpServer& http_;
  Front& front_;
  ServedMachines& machines_;
  const uint64_t bytes_max_;
  std::weak_ptr<Upload> open_;  // the one whose body is coming
  uint64_t last_number_ = 0;
};

}  // namespace seer
