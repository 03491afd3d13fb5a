// ServedAnswer: turns the bytes of one HTTP answer into parts. Whatever the bytes are, exactly one part has an end, and
// none comes after it. Single owner.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "protocols/result.h"
#include "served/engine_server.h"
#include "served/server_dialect.h"

namespace seer {

class ServedAnswer {
 public:
  /// `part` may be called from each of the functions below. The dialect is used here only.
  ServedAnswer(ServedAsk ask, const ServerDialect& dialect, std::function<void(ServedPart)> part);
  void head(int status, std::string_view type);
  void body(std::string_view bytes);
  /// No more bytes come; an error says why too early.
  void end(const Status& status);

 private:
  void take(std::string_view text);
  void fail_with(std::string why);
  void give(ServedPart part);

  const ServedAsk ask_;
  const std::unique_ptr<AnswerReader> reader_;  // refers to ask_
  const std::function<void(ServedPart)> part_;
  EventStream events_;
  std::string whole_;  // of what is no stream
  int status_ = 0;
  bool is_stream_ = false, has_closed_ = false, is_over_ = false;
};

}  // namespace seer
