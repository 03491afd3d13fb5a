// PromptStream: reads prompts line by line from a file descriptor (stdin) as they arrive. It never waits unless asked to, so that
// one thread can read prompts and write responses. Used by rollout_command. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/jsonl.h"
#include "protocols/result.h"

namespace seer {

class PromptStream {
 public:
  /// Takes at most `limit` prompts (0: all). The caller keeps `fd` open. `name`: its name in messages.
  PromptStream(int fd, std::string name, int64_t limit, const PromptDefaults& defaults);

  /// The next prompts that have arrived, in order; at most a few hundred. An error names the line and ends the stream; prompts
  /// before it are returned first, by an earlier call.
  Result<std::vector<PromptLine>> take();
  /// Waits until take() has something to return, at most timeout_ms.
  void wait(int timeout_ms) const;
  /// True once no more prompts will come.
  bool ended() const { return ended_; }

 private:
  Status read_some();

  const int fd_;
  const std::string name_;
  const int64_t limit_;
  PromptLines lines_;
  std::string text_;           // read, but not parsed yet
  int64_t line_ = 0;           // of the last line that was parsed
  int64_t prompts_ = 0;        // taken so far
  bool is_read_ = false;       // the descriptor is at its end
  bool ended_ = false;
  Status failed_;              // for the next take() to return
};

}  // namespace seer
