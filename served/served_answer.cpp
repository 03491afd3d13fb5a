#include "served/served_answer.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace seer {
namespace {

constexpr size_t kErrorBytes = 4096;          // of an answer with an error, that are kept
constexpr size_t kWholeBytesMax = 256 << 20;  // of an answer that is no stream

}  // namespace

ServedAnswer::ServedAnswer(ServedAsk ask, const ServerDialect& dialect, std::function<void(ServedPart)> part)
    : ask_(std::move(ask)), reader_(dialect.reader(ask_)), part_(std::move(part)) {}

void ServedAnswer::head(int status, std::string_view type) {
  status_ = status;
  is_stream_ = type.starts_with("text/event-stream");
}

void ServedAnswer::body(std::string_view bytes) {
  if (is_over_) return;
  if (status_ != 200 || !is_stream_) {
    const size_t room = (status_ == 200 ? kWholeBytesMax : kErrorBytes) - whole_.size();
    whole_ += bytes.substr(0, room);
    return;
  }
  const Status status = events_.add(bytes, [this](std::string_view event) {
    if (event == "[DONE]")
      has_closed_ = true;
    else
      take(event);
    return !is_over_;
  });
  if (!status.ok()) fail_with(status.error().detail);
}

void ServedAnswer::end(const Status& status) {
  if (is_over_) return;
  if (!status.ok()) return fail_with(status.error().detail);
  if (status_ != 200) return give(part_of_error(status_, whole_));
  if (!is_stream_) take(whole_);
  if (!is_over_) fail_with(has_closed_ || !is_stream_ ? "it ended the answer without a reason" : "its stream broke off");
}

void ServedAnswer::take(std::string_view text) {
  const auto object = parse_answer(text);
  if (!object.ok()) return fail_with(object.error().detail);
  Result<ServedPart> part = reader_->read(*object);
  if (!part.ok()) return fail_with(part.error().detail);
  if (!part->output.empty() || part->end != ServedEnd::kNone) give(*std::move(part));
}

void ServedAnswer::fail_with(std::string why) { give({.end = ServedEnd::kFailed, .why = std::move(why)}); }

void ServedAnswer::give(ServedPart part) {
  is_over_ = part.end != ServedEnd::kNone;
  part_(std::move(part));
}

}  // namespace seer
