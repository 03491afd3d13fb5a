// OutputWriter: a file that a command writes line by line. Lines go to PATH.partial, which is valid to its last line at
// every moment, and finish() renames it to PATH: a reader of PATH never sees half of a result. A path that exists and
// is not a regular file (/dev/stdout, a pipe) is written directly.
// Used by seer.cpp for --out and --report. Single owner, not thread-safe.
//
// Invariants:
//  (1) whatever happens, the file ends with a whole line: a line that did not fit is removed;
//  (2) a PATH.partial has one writer at a time, also among processes;
//  (3) without finish(), PATH is unchanged, and PATH.partial holds the appended lines;
//  (4) lines that an earlier run left in PATH.partial stay until the first append().
#pragma once
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

/// Errors: kInvalidArgument if two flags name the same existing file, also by different paths or links: the output would replace
/// the input.
Status check_two_files(const char* out_flag, const std::string& out, const char* in_flag, const std::string& in);

class OutputWriter {
 public:
  /// Opens PATH.partial, so that a path that cannot be written is found before any work begins. "-" is stdout.
  static Result<OutputWriter> open(const std::string& path);
  OutputWriter(OutputWriter&& other) noexcept;
  OutputWriter& operator=(OutputWriter&& other) noexcept;
  ~OutputWriter();

  /// Writes `text`, which ends with a newline, in one piece. REQUIRES: not finished.
  Status append(std::string_view text);
  /// Makes PATH appear with all appended lines. REQUIRES: not finished.
  Status finish();
  /// Ends a sentence about the appended lines ("they") if finish() is never called: "they are in o.jsonl.partial, and o.jsonl is
  /// as it was".
  std::string left_text() const;
  /// The file that holds the appended lines until finish().
  const std::string& unfinished_path() const { return partial_.empty() ? path_ : partial_; }

 private:
  OutputWriter(std::string path, std::string partial, int fd);
  void close();
  Status drop_old_lines();

  std::string path_;     // as the user named it, for messages; for a link, its target
  std::string partial_;  // empty: written directly
  int fd_ = -1;          // -1: finished or moved away
  int64_t bytes_ = 0;    // appended so far
};

}  // namespace seer
