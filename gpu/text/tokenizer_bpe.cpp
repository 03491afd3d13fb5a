#include "gpu/text/tokenizer_bpe.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "gpu/text/added_tokens.h"
#include "gpu/text/bpe_model.h"
#include "gpu/text/json_text.h"
#include "gpu/text/pretokenizer.h"
#include "gpu/text/text_normalizer.h"
#include "gpu/text/token_decoder.h"
#include "gpu/text/tokenizer_config.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 30;  // positions in a word are 32 bits

/// The ids that the post-processor puts around a text.
struct SpecialFrame {
  std::vector<int32_t> before, behind;
};

class SpecialFrameReader {
 public:
  static Result<SpecialFrame> read(const JsonAt& field) {
    SpecialFrame frame;
    if (!field.is_null()) SEER_RETURN_IF_ERROR(read_step(field, frame));
    return frame;
  }

 private:
  static Status read_step(const JsonAt& field, SpecialFrame& frame) {
    SEER_ASSIGN_OR_RETURN(const std::string type, field.at("type").text());
    if (type == "Sequence") {
      for (const JsonAt& part : field.at("processors").elements()) SEER_RETURN_IF_ERROR(read_step(part, frame));
      return {};
    }
    if (type == "ByteLevel") return {};  // changes offsets only
    if (type == "TemplateProcessing") return read_template(field, frame);
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      SEER_RETURN_IF_ERROR(read_token(field.at("cls"), frame.before));
      return read_token(field.at("sep"), frame.behind);
    }
    return field.at("type").wrong("is '", type,
                                  "', which is not supported (ByteLevel, TemplateProcessing, RobertaProcessing, "
                                  "BertProcessing and Sequence are)");
  }

  /// ["<s>", 0]
  static Status read_token(const JsonAt& field, std::vector<int32_t>& ids) {
    if (field.elements().size() != 2) return field.wrong("must be [token, id]");
    return read_id(field.elements()[1], ids);
  }

  static Status read_id(const JsonAt& field, std::vector<int32_t>& ids) {
    SEER_ASSIGN_OR_RETURN(const int64_t id, field.integer());
    if (id < 0 || id > INT32_MAX) return field.wrong("is ", id, ", out of range");
    ids.push_back(static_cast<int32_t>(id));
    return {};
  }

  static Status read_template(const JsonAt& field, SpecialFrame& frame) {
    bool text_seen = false;
    for (const JsonAt& item : field.at("single").elements()) {
      if (item.at("Sequence").is_object()) {
        if (text_seen) return item.wrong("repeats the text, which is not supported");
        text_seen = true;
        continue;
      }
      SEER_ASSIGN_OR_RETURN(const std::string token, item.at("SpecialToken").at("id").text());
      const JsonAt ids = field.at("special_tokens").at(token).at("ids");
      if (ids.elements().empty()) return ids.wrong("must list the ids of '", token, "'");
      for (const JsonAt& id : ids.elements())
        SEER_RETURN_IF_ERROR(read_id(id, text_seen ? frame.behind : frame.before));
    }
    if (!text_seen) return field.at("single").wrong("has no Sequence, so that the text would be lost");
    return {};
  }
};

struct BpeParts {
  TextNormalizer normalizer;
  AddedTokens added;
  Pretokenizer pretokenizer;
  BpeModel model;
  SpecialFrame frame;
  TokenDecoder decoder;
};

class BpeTokenizer final : public Tokenizer {
 public:
  /// `config`: that of tokenizer_config.json; null: there is none.
  static Result<std::shared_ptr<const Tokenizer>> make(const JsonAt& file, const JsonAt& config) {
    SEER_ASSIGN_OR_RETURN(TextNormalizer normalizer, TextNormalizer::parse(file.at("normalizer")));
    SEER_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::parse(file.at("pre_tokenizer")));
    SEER_ASSIGN_OR_RETURN(BpeModel model, BpeModel::parse(file.at("model"), pretokenizer.byte_level()));
    SEER_ASSIGN_OR_RETURN(AddedTokens added, read_added_tokens(file.at("added_tokens"), config.at("added_tokens_decoder"), model, normalizer));
    SEER_ASSIGN_OR_RETURN(SpecialFrame frame, SpecialFrameReader::read(file.at("post_processor")));
    SEER_ASSIGN_OR_RETURN(TokenDecoder decoder, TokenDecoder::parse(file.at("decoder")));
    auto tokenizer =
        std::make_shared<BpeTokenizer>(BpeParts{std::move(normalizer), std::move(added), std::move(pretokenizer),
                                                std::move(model), std::move(frame), std::move(decoder)});
    SEER_RETURN_IF_ERROR(tokenizer->list_tokens(file));
    tokenizer->mark_named(config.value());
    SEER_RETURN_IF_ERROR(tokenizer->use_flags(config));
    return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
  }

  explicit BpeTokenizer(BpeParts parts) : parts_(std::move(parts)) {}

  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options) const override {
    if (text.size() > kTextBytesMax)
      return fail(Code::kInvalidArgument, "a text of ", text.size(), " bytes; at most ", kTextBytesMax, " are encoded");
    Encoding encoding;
    if (options.add_special) encoding.ids = parts_.frame.before;
    for (size_t at = 0; at < text.size();) {
      const size_t valid = utf8_valid_bytes(text.substr(at));
      SEER_RETURN_IF_ERROR(encode_text(text.substr(at, valid), at == 0, encoding));
      at += valid;
      size_t invalid = 0;
      while (at + invalid < text.size() && utf8_at(text, at + invalid).bytes == 0) ++invalid;
      SEER_RETURN_IF_ERROR(encode_invalid(text.substr(at, invalid), encoding));
      at += invalid;
    }
    if (options.add_special)
      encoding.ids.insert(encoding.ids.end(), parts_.frame.behind.begin(), parts_.frame.behind.end());
    return std::move(encoding.ids);
  }

  std::string decode(std::span<const int32_t> ids, DecodeOptions options) const override {
    std::string bytes;
    std::vector<TokenText> texts;
    for (const int32_t id : ids) {
      if (!has_token(id) || (options.skip_special && tokens_[id].special)) continue;
      if (parts_.decoder.pieces_join()) {
        bytes += tokens_[id].piece;
      } else {
        texts.push_back({tokens_[id].text, tokens_[id].added});
      }
    }
    return parts_.decoder.pieces_join() ? bytes : parts_.decoder.decode(std::move(texts));
  }

  std::string piece(int32_t id) const override { return has_token(id) ? tokens_[id].piece : ""; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  bool is_special(int32_t id) const override { return has_token(id) && tokens_[id].special; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = id_of_.find(token);
    if (found == id_of_.end()) return std::nullopt;
    return found->second;
  }

 private:
  struct Token {
    std::string text;  // as the file spells it; empty: no such id
    std::string piece;
    bool added = false;
    bool special = false;
  };
  /// Working state of one encode().
  struct Encoding {
    std::vector<int32_t> ids;
    PatternScratch pattern;
    BpeScratch bpe;
    Words words;
  };

  bool has_token(int32_t id) const { return id >= 0 && id < vocab_size() && !tokens_[id].text.empty(); }

  Status list_tokens(const JsonAt& file) {
    const auto& vocab = parts_.model.tokens();
    tokens_.resize(vocab.size());
    for (size_t id = 0; id < vocab.size(); ++id) tokens_[id].text = vocab[id];
    for (const AddedToken& added : parts_.added.all()) {
      if (static_cast<size_t>(added.id) >= tokens_.size()) tokens_.resize(added.id + 1);
      Token& token = tokens_[added.id];
      if (!token.text.empty() && token.text != added.content)
        return file.at("added_tokens")
            .wrong("gives id ", added.id, " to '", added.content, "'; it is that of '", token.text, "'");
      token = {added.content, "", true, added.special};
    }
    for (size_t id = 0; id < tokens_.size(); ++id) {
      Token& token = tokens_[id];
      if (token.text.empty()) continue;
      token.piece = parts_.decoder.piece({token.text, token.added});
      if (!id_of_.emplace(token.text, static_cast<int32_t>(id)).second)
        return file.at("added_tokens").wrong("names '", token.text, "', which has another id already");
    }
    return {};
  }

  /// As in Hugging Face's PreTrainedTokenizerFast, what tokenizer_config.json says of a token counts, by its content. An id that is another
  /// token's here stays so.
  static Result<AddedTokens> read_added_tokens(const JsonAt& listed, const JsonAt& decoder, const BpeModel& model, const TextNormalizer& normalizer) {
    SEER_ASSIGN_OR_RETURN(AddedTokens added, AddedTokens::parse(listed, normalizer));
    if (decoder.is_null()) return added;
    std::map<int64_t, nlohmann::json> tokens, said;
    std::unordered_map<std::string, int64_t> id_of;
    for (size_t id = 0; id < model.tokens().size(); ++id) id_of[model.tokens()[id]] = static_cast<int64_t>(id);
    for (const JsonAt& token : listed.elements()) tokens[token.at("id").value().get<int64_t>()] = token.value();
    for (const auto& [id, token] : tokens) id_of[token["content"].get<std::string>()] = id;
    SEER_RETURN_IF_ERROR(read_tokens_by_id(decoder, said));
    for (auto& [id, token] : said) {
      const auto known = id_of.find(token["content"].get<std::string>());
      const bool is_taken = tokens.contains(id) || (std::cmp_less(id, model.tokens().size()) && id >= 0 && !model.tokens()[static_cast<size_t>(id)].empty());
      if (known == id_of.end() && is_taken) continue;
      const int64_t id_here = known == id_of.end() ? id : known->second;
      token["id"] = id_here;
      tokens[id_here] = std::move(token);
    }
    nlohmann::json all = nlohmann::json::array();
    for (auto& [id, token] : tokens) all.push_back(std::move(token));
    return AddedTokens::parse(JsonAt(all, decoder), normalizer);
  }

  /// As in Hugging Face, tokens that the configuration names are special, whatever the file says of them.
  void mark_named(const nlohmann::json& config) {
    const auto mark = [this](const nlohmann::json& token) {
      const nlohmann::json& text = token.is_object() && token.contains("content") ? token["content"] : token;
      const std::optional<int32_t> id = text.is_string() ? id_of(text.get_ref<const std::string&>()) : std::nullopt;
      if (id) tokens_[static_cast<size_t>(*id)].special = true;
    };
    for (const char* const name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
      if (config.contains(name)) mark(config[name]);
    if (const auto more = config.find("additional_special_tokens"); more != config.end() && more->is_array())
      for (const nlohmann::json& token : *more) mark(token);
  }

  /// Hugging Face's LlamaTokenizerFast puts what add_bos_token and add_eos_token say in place of the file's frame (DeepSeek's models).
  Status use_flags(const JsonAt& config) {
    const auto name = config.at("tokenizer_class").text_or("");
    if (!name.ok() || (*name != "LlamaTokenizerFast" && *name != "LlamaTokenizer")) return {};
    SEER_RETURN_IF_ERROR(use_flag(config, "add_bos_token", "bos_token", parts_.frame.before));
    return use_flag(config, "add_eos_token", "eos_token", parts_.frame.behind);
  }
  Status use_flag(const JsonAt& config, const char* flag, const char* name, std::vector<int32_t>& ids) const {
    if (config.at(flag).is_null()) return {};
    SEER_ASSIGN_OR_RETURN(const bool adds, config.at(flag).flag_or(false));
    ids.clear();
    if (!adds) return {};
    const JsonAt token = config.at(name).is_object() ? config.at(name).at("content") : config.at(name);
    SEER_ASSIGN_OR_RETURN(const std::string text, token.text());
    const std::optional<int32_t> id = id_of(text);
    if (!id) return token.wrong("is '", text, "', which is no token, though ", flag, " is true");
    ids.push_back(*id);
    return {};
  }

  /// Encodes valid UTF-8: cuts it at added tokens of the text as given, then between them at those of the normalized text.
  Status encode_text(std::string_view text, bool at_start, Encoding& out) const {
    std::vector<TextPart> parts;
    std::vector<TextPart> normal_parts;
    SEER_RETURN_IF_ERROR(parts_.added.cut(text, /*normalized=*/false, out.pattern, parts));
    for (const TextPart& part : parts) {
      if (part.token_id) {
        out.ids.push_back(*part.token_id);
        continue;
      }
      SEER_ASSIGN_OR_RETURN(const NormalText normal, parts_.normalizer.apply(std::string(part.text), out.pattern));
      SEER_RETURN_IF_ERROR(parts_.added.cut(normal.text, /*normalized=*/true, out.pattern, normal_parts));
      const bool first = at_start && part.text.data() == text.data() && normal.keeps_start;
      for (const TextPart& normal_part : normal_parts) {
        if (normal_part.token_id) {
          out.ids.push_back(*normal_part.token_id);
        } else {
          SEER_RETURN_IF_ERROR(
              encode_plain(normal_part.text, first && normal_part.text.data() == normal.text.data(), out));
        }
      }
    }
    return {};
  }

  /// Encodes normalized text without added tokens.
  Status encode_plain(std::string_view text, bool at_start, Encoding& out) const {
    out.words.text = text;
    SEER_RETURN_IF_ERROR(parts_.pretokenizer.cut(out.words, at_start, out.pattern));
    const std::string_view cut_text = out.words.text;
    for (const TextRange& word : out.words.ranges)
      SEER_RETURN_IF_ERROR(
          parts_.model.encode_word(cut_text.substr(word.begin, word.end - word.begin), out.bpe, out.ids));
    return {};
  }

  /// Encodes bytes that are not text.
  Status encode_invalid(std::string_view bytes, Encoding& out) const {
    if (bytes.empty()) return {};
    if (parts_.pretokenizer.byte_level()) return parts_.model.encode_word(bytes, out.bpe, out.ids);
    if (parts_.model.encode_bytes(bytes, out.ids)) return {};
    std::string replaced;
    for (size_t i = 0; i < bytes.size(); ++i) replaced += kReplacementChar;
    return parts_.model.encode_word(replaced, out.bpe, out.ids);
  }

  BpeParts parts_;
  std::vector<Token> tokens_;                            // by id; filled once, before anyone else sees this
  std::unordered_map<std::string_view, int32_t> id_of_;  // borrows from tokens_
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_bpe_tokenizer(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  if (!in) return fail(Code::kIo, "cannot read ", file.string(), ": ", std::strerror(errno));
  const std::filesystem::path folder = file.parent_path();
  SEER_ASSIGN_OR_RETURN(const nlohmann::json config, read_tokenizer_config(folder));
  return parse_bpe_tokenizer(json, file.string(), JsonAt(config, (folder / "tokenizer_config.json").string()));
}

Result<std::shared_ptr<const Tokenizer>> parse_bpe_tokenizer(std::string_view json, const std::string& name, const JsonAt& config) {
  SEER_ASSIGN_OR_RETURN(const auto document, parse_json(json, name, RepeatedKeys::kLastCounts));
  return BpeTokenizer::make(JsonAt(document, name), config);
}

Result<std::shared_ptr<const Tokenizer>> parse_bpe_tokenizer(std::string_view json, const std::string& name) {
  const nlohmann::json none;
  return parse_bpe_tokenizer(json, name, JsonAt(none, ""));
}

}  // namespace seer
