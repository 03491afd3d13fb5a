// WeightUploads: new weights that a client sends over HTTP, kept in memory until the engines of this process have loaded them.
//
//   POST /seer/v1/weights?version=V&mode=M      the body: one or several safetensors files, each right after the one before
//
// The body is the whole update: until its end has come nothing changes, and if the client breaks off its memory is freed. After
// that it takes the way of weights from a folder. One upload at a time. All of it runs on the HTTP server's thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "gpu/model/model_loader.h"

namespace seer {

class WeightUploads {
 public:
  /// `loader`: of the engines of this process. `model`: that they run; null: there are none here, and uploads are refused.
  WeightUploads(Front& front, std::shared_ptr<ModelLoader> loader, const Model* model);
  /// Null: the request is no upload.
  std::shared_ptr<HttpUpload> open(const HttpRequest& head, std::optional<uint64_t> body_bytes);

 private:
  class Upload;
  Front& front_;
  const std::shared_ptr<ModelLoader> loader_;
  const bool is_here_;
  const uint64_t bytes_max_;
  std::weak_ptr<Upload> open_;  // the one whose body is coming
  uint64_t last_number_ = 0;
};

}  // namespace seer
