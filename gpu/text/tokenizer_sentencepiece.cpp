#include "gpu/text/tokenizer_sentencepiece.h"

#ifdef SEER_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "gpu/text/added_tokens.h"
#include "gpu/text/json_at.h"
#include "gpu/text/json_text.h"
#include "gpu/text/tokenizer_config.h"
#include "gpu/text/utf8.h"
#endif

namespace seer {

#ifndef SEER_HAVE_SENTENCEPIECE

Result<std::shared_ptr<const Tokenizer>> load_sentencepiece_tokenizer(const std::filesystem::path& folder) {
  return fail(Code::kUnavailable, (folder / "tokenizer.model").string(),
              " is a SentencePiece model, but seer was built without SentencePiece "
              "(apt-get install libsentencepiece-dev, then configure again)");
}

#else

namespace {

using Model = sentencepiece::SentencePieceProcessor;
using Json = nlohmann::json;

constexpr std::string_view kSpaceMark = "\u2581";
// As a ModelProto: normalizer_spec { add_dummy_prefix: false }. Behind a model's bytes it changes that one field.
constexpr std::string_view kNoFirstSpace{"\x1a\x02\x18\x00", 4};

struct Settings {
  bool bos = false, eos = false;
  bool every_part_spaced = true;  // the text behind a special token begins with a space, as the first one does
};

Result<Settings> read_settings(const JsonAt& config) {
  Settings settings;
  SEER_ASSIGN_OR_RETURN(settings.bos, config.at("add_bos_token").flag_or(true));
  SEER_ASSIGN_OR_RETURN(settings.eos, config.at("add_eos_token").flag_or(false));
  SEER_ASSIGN_OR_RETURN(settings.every_part_spaced, config.at("legacy").flag_or(true));
  return settings;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t bytes = utf8_valid_bytes(text.substr(at));
    valid += text.substr(at, bytes);
    at += bytes;
    if (at < text.size()) valid += kReplacementChar;
  }
  return valid;
}

/// The model's control symbols and the tokens that the folder adds to it, by id, as tokenizer.json lists such tokens.
Result<AddedTokens> read_special_tokens(const Model& model, const std::filesystem::path& folder, const JsonAt& config) {
  std::map<int64_t, Json> tokens;
  for (int id = 0; id < model.GetPieceSize(); ++id)
    if (model.IsControl(id)) tokens[id] = {{"content", model.IdToPiece(id)}, {"special", true}};
  const std::string old_file = (folder / "added_tokens.json").string();  // content: id
  SEER_ASSIGN_OR_RETURN(const Json old_tokens, read_json_file(old_file));
  if (!old_tokens.is_null() && !old_tokens.is_object()) return JsonAt(old_tokens, old_file).wrong("must be an object");
  for (const auto& [content, id] : old_tokens.items()) {
    SEER_ASSIGN_OR_RETURN(const int64_t number, JsonAt(id, old_file).integer());
    tokens[number] = {{"content", content}, {"special", true}};
  }
  SEER_RETURN_IF_ERROR(read_tokens_by_id(config.at("added_tokens_decoder"), tokens));
  Json list = Json::array();
  for (auto& [id, token] : tokens) {
    token["id"] = id;
    token["normalized"] = false;  // normalizing is the library's, and only of what is between them
    list.push_back(std::move(token));
  }
  return AddedTokens::parse(JsonAt(list, (folder / "tokenizer_config.json").string()), TextNormalizer());
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// `unspaced`: the model without a space of its own before a text; null where the settings do not ask for it.
  SentencePieceTokenizer(std::unique_ptr<Model> model, std::unique_ptr<Model> unspaced, AddedTokens added, Settings settings)
      : model_(std::move(model)), unspaced_(std::move(unspaced)), added_(std::move(added)), settings_(settings) {
    vocab_size_ = model_->GetPieceSize();
    for (const AddedToken& token : added_.all()) {
      added_by_id_[token.id] = &token;
      vocab_size_ = std::max(vocab_size_, token.id + 1);
    }
  }

  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options) const override {
    const std::string valid = valid_utf8(text);
    PatternScratch scratch;
    std::vector<TextPart> parts;
    SEER_RETURN_IF_ERROR(added_.cut(valid, /*normalized=*/false, scratch, parts));
    std::vector<int32_t> ids;
    if (options.add_special && settings_.bos && model_->bos_id() >= 0) ids.push_back(model_->bos_id());
    std::vector<int> part_ids;
    for (const TextPart& part : parts) {
      if (part.token_id) {
        ids.push_back(*part.token_id);
        continue;
      }
      const bool at_start = part.text.data() == valid.data();
      const auto status = (at_start || !unspaced_ ? model_ : unspaced_)->Encode({part.text.data(), part.text.size()}, &part_ids);
      if (!status.ok()) return fail(Code::kInvalidArgument, "SentencePiece cannot encode the text: ", status.ToString());
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
    }
    if (options.add_special && settings_.eos && model_->eos_id() >= 0) ids.push_back(model_->eos_id());
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, DecodeOptions options) const override {
    std::string text;
    bool has_begun = false;  // the text
    std::vector<int> first;  // the pieces before that. The library drops the first space of whatever it decodes, so it gets only these
    const auto end_first = [&] {
      if (first.empty()) return;
      const auto status = model_->Decode(first, &text);
      SEER_CHECK(status.ok(), status.ToString());  // fails on ids out of range only, and these are left out
      first.clear();
      has_begun = true;
    };
    for (const int32_t id : ids) {
      if (options.skip_special && is_special(id)) continue;
      if (!has_begun && is_piece(id) && added(id) == nullptr && !model_->IsByte(id)) {  // of a byte the library would make U+FFFD
        first.push_back(id);
        continue;
      }
      end_first();
      text += piece(id);
      has_begun |= !text.empty();
    }
    end_first();
    return text;
  }

  std::string piece(int32_t id) const override {
    if (const AddedToken* const token = added(id)) return token->content;
    if (!is_piece(id)) return "";
    std::string text;
    if (model_->IsUnknown(id)) {
      SEER_CHECK(model_->Decode(std::vector<int>{id}, &text).ok(), id);
      return text;
    }
    const std::string& spelled = model_->IdToPiece(id);
    if (model_->IsByte(id)) return std::string(1, static_cast<char>(std::stoi(spelled.substr(3, 2), nullptr, 16)));
    for (size_t at = 0; at < spelled.size();) {
      const bool space = spelled.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      text += space ? ' ' : spelled[at];
      at += space ? kSpaceMark.size() : 1;
    }
    return text;
  }

  int32_t vocab_size() const override { return vocab_size_; }
  bool is_special(int32_t id) const override {
    if (const AddedToken* const token = added(id)) return token->special;
    return is_piece(id) && model_->IsUnknown(id);
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    for (const AddedToken& one : added_.all())
      if (one.content == token) return one.id;
    const int id = model_->PieceToId({token.data(), token.size()});
    if (model_->IdToPiece(id) != token) return std::nullopt;  // the library answers <unk> for what it does not know
    return id;
  }

 private:
  bool is_piece(int32_t id) const { return id >= 0 && id < model_->GetPieceSize(); }
  const AddedToken* added(int32_t id) const {
    const auto found = added_by_id_.find(id);
    return found == added_by_id_.end() ? nullptr : found->second;
  }

  std::unique_ptr<Model> model_;  // its const calls are thread-safe
  std::unique_ptr<Model> unspaced_;
  AddedTokens added_;
  Settings settings_;
  std::unordered_map<int32_t, const AddedToken*> added_by_id_;  // borrows from added_
  int32_t vocab_size_ = 0;
};

Result<std::unique_ptr<Model>> load_model(const std::string& bytes, const std::string& file) {
  auto model = std::make_unique<Model>();
  const auto status = model->LoadFromSerializedProto(bytes);
  if (!status.ok()) return fail(Code::kCorrupt, file, " is not a SentencePiece model: ", status.ToString());
  return model;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_sentencepiece_tokenizer(const std::filesystem::path& folder) {
  const std::string config_file = (folder / "tokenizer_config.json").string();
  SEER_ASSIGN_OR_RETURN(const Json document, read_tokenizer_config(folder));
  const JsonAt config(document, config_file);
  SEER_ASSIGN_OR_RETURN(const Settings settings, read_settings(config));
  const std::string file = (folder / "tokenizer.model").string();
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(Code::kNotFound, "cannot read ", file, ": ", std::strerror(errno));
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  SEER_ASSIGN_OR_RETURN(auto model, load_model(bytes, file));
  std::unique_ptr<Model> unspaced;
  if (!settings.every_part_spaced) {
    SEER_ASSIGN_OR_RETURN(unspaced, load_model(cat(bytes, kNoFirstSpace), file));
  }
  SEER_ASSIGN_OR_RETURN(AddedTokens added, read_special_tokens(*model, folder, config));
  return std::shared_ptr<const Tokenizer>(
      std::make_shared<SentencePieceTokenizer>(std::move(model), std::move(unspaced), std::move(added), settings));
}

#endif

}  // namespace seer
