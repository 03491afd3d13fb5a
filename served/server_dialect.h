// ServerDialect: what one kind of server is asked over HTTP, and what its answers mean. Pure: no I/O, no clocks, no state but that of
// an AnswerReader. One dialect per kind: sglang_server.h, vllm_server.h; Seer's own is SGLang's with two extensions.
//
// Answers are not trusted. A token out of range, a log-probability too few, ids that do not go on from those before, an answer to
// another prompt: each is an error, and the tokens before it stay.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"
#include "served/engine_server.h"
#include "served/http_message.h"

namespace seer {

/// Reads the objects of one answer, in order. Single owner.
class AnswerReader {
 public:
  explicit AnswerReader(const ServedAsk& ask) : ask_(ask) {}
  virtual ~AnswerReader() = default;
  /// An object of the stream, or the whole answer of a server that does not stream. Errors: it makes no sense.
  Result<ServedPart> read(const nlohmann::json& object);

 protected:
  /// Reads an object that is no error.
  virtual Result<ServedPart> read_part(const nlohmann::json& object) = 0;
  const ServedAsk& ask_;

 private:
  int64_t total_ = 0;  // tokens so far
};

/// Steps that change the weights, in order; each must be answered with 200.
struct UpdateAsks {
  std::vector<HttpAsk> steps;
  std::optional<HttpAsk> afterwards = {};  // also if a step failed
};

class ServerDialect {
 public:
  virtual ~ServerDialect() = default;
  virtual HttpAsk generate(const ServedAsk& ask) const = 0;
  /// Makes a reader of the answer to generate(). REQUIRES: `ask` outlives it.
  virtual std::unique_ptr<AnswerReader> reader(const ServedAsk& ask) const = 0;
  /// None: closing the connection is all that ends a request.
  virtual std::optional<HttpAsk> abort(const std::string& rid) const = 0;
  /// Questions whose answers tell the state; asked one after the other.
  virtual std::vector<HttpAsk> look() const = 0;
  /// `answers`: to look(), one each; status 0: none came. May take note of what the server can do.
  virtual Result<ServerState> state(const std::vector<HttpAnswer>& answers) = 0;
  virtual UpdateAsks update_weights(const std::string& folder, const std::string& label) const = 0;
};

std::unique_ptr<ServerDialect> make_dialect(ServerKind kind);

/// Names this process in what it says of itself (`server_ids`). Thread-safe.
const std::string& own_server_id();
/// Which servers an answer names: the one that answers, then those that it passes requests on to; at most kServerIdsMax. Errors:
/// kInvalidArgument: this process is one of them, so requests would go in a circle; kIsThisProcess, if it is the one that answers.
Result<std::vector<std::string>> server_ids_of(const nlohmann::json& info);
constexpr size_t kServerIdsMax = 4096;
inline constexpr const char* kIsThisProcess = "it is this router itself";

/// The sampling parameters that SGLang and vLLM call alike.
nlohmann::json sampling_fields(const SamplingParams& sampling);

/// Whether the status says that the request is wrong, and would be elsewhere too.
bool is_refusal(int64_t status);
/// What a status other than 200 means for the request: refused, or failed and maybe busy. `body`: its beginning.
ServedPart part_of_error(int status, const std::string& body);

/// Splits a stream of server-sent events into the texts of their `data` fields. Comments and other fields are left out.
class EventStream {
 public:
  /// Calls take(text) for each event that the bytes complete, until it returns false: then nothing may be added any more. Errors: an
  /// event is larger than kEventBytesMax.
  template <class Take>
  Status add(std::string_view bytes, Take&& take) {
    rest_ += bytes;
    size_t from = 0;
    for (size_t end; (end = rest_.find('\n', from)) != std::string::npos; from = end + 1) {
      std::string_view line(rest_.data() + from, end - from);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      if (!take(line)) return {};
    }
    rest_.erase(0, from);
    if (rest_.size() > kEventBytesMax) return fail(Code::kFull, "an event of its stream is larger than ", kEventBytesMax, " bytes");
    return {};
  }

  static constexpr size_t kEventBytesMax = size_t{256} << 20;

 private:
  std::string rest_;  // the line that is not complete
};

// ---- for the dialects -------------------------------------------------------------------------------------------------------------
/// Null where the field is missing or null, or `object` is none.
const nlohmann::json* field_of(const nlohmann::json& object, const char* name);
/// `otherwise` where it is missing or of another type.
int64_t number_of(const nlohmann::json& object, const char* name, int64_t otherwise = 0);
std::string text_of(const nlohmann::json& object, const char* name);
/// Errors: not a list of token ids.
Result<std::vector<int32_t>> ids_of(const nlohmann::json& list);
/// Notes why an answer ended, in the words that all kinds share. `matched`: with "stop". `message`: with "abort" and "error". Errors: it is
/// none of their reasons.
Status note_end(const std::string& reason, std::string matched, const std::string& message, ServedPart& part);
/// Errors: not a number that is finite and at most 0. Rounded values just above 0 count as 0.
Result<float> logprob_of(const nlohmann::json& value);
/// Errors: not JSON; nested deeper than 64 levels, which the library would write recursively.
Result<nlohmann::json> parse_answer(std::string_view text);
/// The answer's JSON; null where it is none, or its status is not 200.
nlohmann::json json_of(const HttpAnswer& answer);

}  // namespace seer
