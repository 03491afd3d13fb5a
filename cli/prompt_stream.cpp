#include "cli/prompt_stream.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/json_lines.h"

namespace seer {
namespace {

constexpr size_t kPromptsAtOnce = 256;     // per take(), so that its caller can do other work between
constexpr size_t kTextBytes = 1 << 20;     // most bytes read ahead, unless one line is longer

bool is_readable(int fd, int timeout_ms) {
  pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, timeout_ms) > 0;
}

}  // namespace

PromptStream::PromptStream(int fd, std::string name, int64_t limit, const PromptDefaults& defaults)
    : fd_(fd), name_(std::move(name)), limit_(limit), lines_(name_, defaults) {}

void PromptStream::wait(int timeout_ms) const { is_readable(fd_, timeout_ms); }

Result<std::vector<PromptLine>> PromptStream::take() {
  std::vector<PromptLine> prompts;
  Status read = failed_.ok() ? read_some() : failed_;
  size_t begin = 0;  // of the next line
  while (read.ok() && !ended_ && prompts.size() < kPromptsAtOnce) {
    const size_t end = text_.find('\n', begin);
    if (end == std::string::npos && !is_read_) break;
    if (end == std::string::npos && begin == text_.size()) {
      ended_ = true;
      break;
    }
    const std::string line = text_.substr(begin, end == std::string::npos ? end : end - begin);
    begin = end == std::string::npos ? text_.size() : end + 1;
    ++line_;
    Result<std::optional<PromptLine>> prompt = lines_.take(line_, line);
    if (!prompt.ok() && end == std::string::npos && !check_object(name_, line_, line).ok())
      read = fail(Code::kInvalidArgument, name_, ":", line_, ": expected a JSON object and a newline, but the stream ends",
                  " in the middle of this line");
    else if (!prompt.ok())
      read = prompt.error();
    else if (*prompt)
      prompts.push_back(**std::move(prompt));
    if (limit_ > 0 && prompts_ + std::ssize(prompts) == limit_) ended_ = true;
  }
  text_.erase(0, begin);
  prompts_ += std::ssize(prompts);
  if (read.ok()) return prompts;
  if (!prompts.empty()) {
    failed_ = read;
    return prompts;
  }
  ended_ = true;
  return read.error();
}

/// Reads what has arrived, without waiting.
Status PromptStream::read_some() {
  std::array<char, 1 << 16> part;
  while (!is_read_ && !ended_ && (text_.size() < kTextBytes || text_.find('\n') == std::string::npos) && is_readable(fd_, 0)) {
    if (text_.size() > kLineBytesMax)
      return fail(Code::kInvalidArgument, name_, ":", line_ + 1, ": the line is longer than ", kLineBytesMax >> 20,
                  " MiB: expected a JSON object per line");
    const ssize_t count = ::read(fd_, part.data(), part.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return {};
    if (count < 0) return fail(Code::kIo, "cannot read ", name_, ": ", std::strerror(errno));
    is_read_ = count == 0;
    text_.append(part.data(), static_cast<size_t>(count));
  }
  return {};
}

}  // namespace seer
