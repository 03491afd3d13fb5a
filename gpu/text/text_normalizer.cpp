#include "gpu/text/text_normalizer.h"

#include "gpu/text/utf8.h"

#ifdef SEER_HAVE_UTF8PROC
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#endif

namespace seer {
namespace {

#ifndef SEER_HAVE_UTF8PROC
Error no_unicode_library() {
  return fail(Code::kUnavailable,
              "this tokenizer normalizes Unicode and the text is not plain ASCII, but seer was built without utf8proc "
              "(apt-get install libutf8proc-dev, then configure again)");
}
#endif

std::string ascii_lowercase(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

Result<TextPattern> parse_pattern(const JsonAt& field) {
  if (!field.at("String").is_null()) {
    SEER_ASSIGN_OR_RETURN(std::string text, field.at("String").text());
    if (text.empty()) return field.at("String").wrong("must not be empty");
    return TextPattern::literal(std::move(text));
  }
  SEER_ASSIGN_OR_RETURN(const std::string regex, field.at("Regex").text());
  auto pattern = TextPattern::regex(regex);
  if (!pattern.ok()) return field.at("Regex").wrong(pattern.error().detail);
  return pattern;
}

Result<TextNormalizer> TextNormalizer::parse(const JsonAt& field) {
  TextNormalizer normalizer;
  if (!field.is_null()) SEER_RETURN_IF_ERROR(normalizer.parse_step(field));
  return normalizer;
}

Status TextNormalizer::parse_step(const JsonAt& field) {
  SEER_ASSIGN_OR_RETURN(const std::string type, field.at("type").text());
  if (type == "Sequence") {
    for (const JsonAt& part : field.at("normalizers").elements()) SEER_RETURN_IF_ERROR(parse_step(part));
  } else if (type == "NFC") {
    steps_.emplace_back(Form::kNfc);
  } else if (type == "NFD") {
    steps_.emplace_back(Form::kNfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(Form::kNfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(Form::kNfkd);
  } else if (type == "Prepend") {
    SEER_ASSIGN_OR_RETURN(std::string prefix, field.at("prepend").text());
    steps_.emplace_back(Prepend{std::move(prefix)});
  } else if (type == "Replace") {
    SEER_ASSIGN_OR_RETURN(TextPattern pattern, parse_pattern(field.at("pattern")));
    SEER_ASSIGN_OR_RETURN(std::string content, field.at("content").text());
    steps_.emplace_back(Replace{std::move(pattern), std::move(content)});
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    SEER_ASSIGN_OR_RETURN(const bool left, field.at("strip_left").flag_or(true));
    SEER_ASSIGN_OR_RETURN(const bool right, field.at("strip_right").flag_or(true));
    steps_.emplace_back(Strip{left, right});
  } else {
    return field.at("type").wrong("is '", type,
                                  "', which is not supported (NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, "
                                  "Strip and Sequence are)");
  }
  return {};
}

Result<NormalText> TextNormalizer::apply(std::string given, PatternScratch& scratch) const {
  const size_t bytes_max = replaced_bytes_max(given.size());
  NormalText normal{std::move(given)};
  std::string& text = normal.text;
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      SEER_ASSIGN_OR_RETURN(text, to_form(std::move(text), *form));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->prefix);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      SEER_ASSIGN_OR_RETURN(text, replace_all(text, replace->pattern, replace->content, scratch, bytes_max));
    } else if (std::holds_alternative<Lowercase>(step)) {
      SEER_ASSIGN_OR_RETURN(text, to_lowercase(std::move(text)));
    } else {
      const Strip& sides = std::get<Strip>(step);
      if (sides.left && !text.empty() && is_white_space(utf8_at(text, 0).value)) normal.keeps_start = false;
      text = strip(text, sides);
    }
  }
  return normal;
}

#ifdef SEER_HAVE_UTF8PROC

Result<std::string> TextNormalizer::to_form(std::string text, Form form) {
  if (is_ascii(text)) return text;
  int options = UTF8PROC_STABLE;
  options |= form == Form::kNfc || form == Form::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::kNfkc || form == Form::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* normal = nullptr;
  const auto bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &normal, static_cast<utf8proc_option_t>(options));
  if (bytes < 0) return fail(Code::kIo, "utf8proc cannot normalize ", text.size(), " bytes: ", utf8proc_errmsg(bytes));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(normal, std::free);
  return std::string(reinterpret_cast<const char*>(normal), static_cast<size_t>(bytes));
}

Result<std::string> TextNormalizer::to_lowercase(std::string text) {
  if (is_ascii(text)) return ascii_lowercase(std::move(text));
  constexpr uint32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two, whatever the language
  std::string lower;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    if (c.value == kCapitalIWithDot) {
      lower += "i\u0307";
    } else {
      utf8_append(lower, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    }
    at += c.bytes;
  }
  return lower;
}

#else

Result<std::string> TextNormalizer::to_form(std::string text, Form) {
  if (is_ascii(text)) return text;
  return no_unicode_library();
}

Result<std::string> TextNormalizer::to_lowercase(std::string text) {
  if (is_ascii(text)) return ascii_lowercase(std::move(text));
  return no_unicode_library();
}

#endif

std::string TextNormalizer::strip(std::string_view text, Strip sides) {
  while (sides.left && !text.empty() && is_white_space(utf8_at(text, 0).value))
    text.remove_prefix(utf8_at(text, 0).bytes);
  while (sides.right && !text.empty() && is_white_space(utf8_last(text).value))
    text.remove_suffix(utf8_last(text).bytes);
  return std::string(text);
}

}  // namespace seer
