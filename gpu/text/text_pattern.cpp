#include "gpu/text/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

constexpr uint32_t kHeapKibMax = 256 * 1024;  // for one search that is too deep for the JIT's stack

std::string pcre2_message(int code) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

PatternScratch::PatternScratch() : match_(pcre2_match_data_create(1, nullptr)) {}
void PatternScratch::Free::operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
void TextPattern::Free::operator()(pcre2_code* code) const { pcre2_code_free(code); }
void TextPattern::Free::operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }

TextPattern TextPattern::literal(std::string text) {
  SEER_CHECK(!text.empty());
  TextPattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Result<TextPattern> TextPattern::regex(const std::string& pattern) {
  SEER_ASSIGN_OR_RETURN(const std::string rewritten, pcre2_from_oniguruma(pattern));
  // Ruby's ^ and $ hold at every line, and its dot stops at \n alone.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  TextPattern compiled;
  compiled.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(), kOptions, &error,
                                     &at, context.get()));
  if (!compiled.code_) {
    return fail(Code::kInvalidArgument, "'", pattern, "' is not a pattern PCRE2 can read: ", pcre2_message(error),
                " at byte ", at, " of '", rewritten, "'");
  }
  pcre2_jit_compile(compiled.code_.get(), PCRE2_JIT_COMPLETE);  // without JIT the same matches are found, slower
  compiled.limits_.reset(pcre2_match_context_create(nullptr));
  pcre2_set_heap_limit(compiled.limits_.get(), kHeapKibMax);
  return compiled;
}

TextPattern TextPattern::known_regex(const std::string& pattern) {
  auto compiled = regex(pattern);
  SEER_CHECK(compiled.ok(), compiled.error());
  return *std::move(compiled);
}

Status TextPattern::find_all(std::string_view text, PatternScratch& scratch, std::vector<TextRange>& matches) const {
  matches.clear();
  if (!code_) {
    for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos; at += literal_.size())
      matches.push_back({at, at + literal_.size()});
    return {};
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at <= text.size();) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | options, scratch.match_.get(),
                         limits_.get());
    };
    int rc = match(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMATCH) return {};
    if (rc < 0)
      return fail(Code::kInvalidArgument, "the tokenizer's pattern gave up on this text: ", pcre2_message(rc));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.match_.get());
    const TextRange found{ends[0], ends[1]};
    const bool empty = found.begin == found.end;
    // As Oniguruma's find_iter: an empty match right after another match does not count.
    if (!empty || matches.empty() || matches.back().end != found.begin) matches.push_back(found);
    at = found.end;
    if (empty) at += at < text.size() ? utf8_at(text, at).bytes : 1;
  }
  return {};
}

Result<std::string> replace_all(std::string_view text, const TextPattern& pattern, std::string_view content,
                                PatternScratch& scratch, size_t bytes_max) {
  std::vector<TextRange> matches;
  SEER_RETURN_IF_ERROR(pattern.find_all(text, scratch, matches));
  if (!content.empty() && matches.size() > bytes_max / content.size())
    return fail(Code::kFull, "replacing ", matches.size(), " places by ", content.size(), " bytes each makes more than ", bytes_max,
                " bytes of a text of ", text.size());
  std::string replaced;
  size_t copied = 0;
  for (const TextRange& match : matches) {
    replaced.append(text, copied, match.begin - copied).append(content);
    copied = match.end;
  }
  return replaced.append(text, copied);
}

}  // namespace seer
