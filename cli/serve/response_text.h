// ResponseText: the text of a response, as its tokens come or all at once.
//
// Invariants:
//  (1) what append() and finish() return, joined, does not depend on how the tokens were cut into parts;
//  (2) a part never ends inside a character, unless the response does;
//  (3) where the stop is left out, nothing of it is ever returned.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/text/tokenizer.h"
#include "protocols/chunk.h"

namespace seer {

struct TextRules {
  bool skip_special = true;           // special tokens add nothing
  bool leave_out_stop = true;         // the stop string or the stop token that ended the response, and what follows it
  std::vector<std::string> stop = {}; // as in SamplingParams
  std::vector<int32_t> stop_ids = {}; // as in SamplingParams, and EOS unless it is ignored
  std::vector<int32_t> before = {};   // end_of_prompt(): some tokenizers drop the first space of a text, which a response does not begin
};
/// The last tokens of a prompt.
std::vector<int32_t> end_of_prompt(const std::vector<int32_t>& ids);

class ResponseText {
 public:
  /// `tokenizer` may be null: then all text is empty. REQUIRES: it outlives this.
  ResponseText(const Tokenizer* tokenizer, TextRules rules);
  /// Text that these tokens add and that no later token can change.
  std::string append(std::span<const int32_t> ids);
  /// The rest of the text, once the response is over. REQUIRES: all tokens of the response were appended.
  std::string finish(const Response& response);

 private:
  void use_context(std::span<const int32_t> last);
  size_t final_bytes() const;

  const Tokenizer* const tokenizer_;
  const TextRules rules_;
  std::vector<int32_t> context_;  // the last tokens, of the prompt too, which the text of the next ones may depend on
  size_t context_bytes_ = 0;      // of their text
  std::string pending_;           // text that was not returned yet
};

/// The text of a response at once. Where it goes on, what no later token can change.
std::string response_text(const Tokenizer* tokenizer, const TextRules& rules, const Response& response);

/// What ended a response that has kStop: one of the two is set.
struct StopCause {
  std::string text;    // a stop string
  int32_t token = -1;  // a stop token, or EOS
};
StopCause stop_cause(const Response& response, const std::vector<std::string>& stop);

}  // namespace seer
