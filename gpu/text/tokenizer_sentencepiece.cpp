#include "gpu/text/tokenizer_sentencepiece.h"

#ifdef SEER_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/text/json_at.h"
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

constexpr std::string_view kSpaceMark = "\u2581";

struct SpecialFlags {
  bool bos = false, eos = false;
};

Result<SpecialFlags> read_flags(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return SpecialFlags{};
  const auto document = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return fail(Code::kCorrupt, file.string(), " is not valid JSON");
  const JsonAt config(document, file.string());
  SpecialFlags flags;
  SEER_ASSIGN_OR_RETURN(flags.bos, config.at("add_bos_token").flag_or(false));
  SEER_ASSIGN_OR_RETURN(flags.eos, config.at("add_eos_token").flag_or(false));
  return flags;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> model, SpecialFlags flags)
      : model_(std::move(model)), flags_(flags) {}

  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options) const override {
    std::vector<int> body;
    const auto status = model_->Encode({text.data(), text.size()}, &body);
    if (!status.ok()) return fail(Code::kInvalidArgument, "SentencePiece cannot encode the text: ", status.ToString());
    std::vector<int32_t> ids;
    if (options.add_special && flags_.bos && model_->bos_id() >= 0) ids.push_back(model_->bos_id());
    ids.insert(ids.end(), body.begin(), body.end());
    if (options.add_special && flags_.eos && model_->eos_id() >= 0) ids.push_back(model_->eos_id());
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, DecodeOptions options) const override {
    std::vector<int> known;
    for (const int32_t id : ids)
      if (has_token(id) && !(options.skip_special && is_special(id))) known.push_back(id);
    std::string text;
    const auto status = model_->Decode(known, &text);
    SEER_CHECK(status.ok(), status.ToString());  // fails on ids out of range only, and these are left out
    return text;
  }

  std::string piece(int32_t id) const override {
    if (!has_token(id) || model_->IsControl(id)) return "";
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

  int32_t vocab_size() const override { return model_->GetPieceSize(); }
  bool is_special(int32_t id) const override {
    return has_token(id) && (model_->IsControl(id) || model_->IsUnknown(id));
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const int id = model_->PieceToId({token.data(), token.size()});
    if (model_->IdToPiece(id) != token) return std::nullopt;  // the library answers <unk> for what it does not know
    return id;
  }

 private:
  bool has_token(int32_t id) const { return id >= 0 && id < vocab_size(); }

  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;  // its const calls are thread-safe
  SpecialFlags flags_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_sentencepiece_tokenizer(const std::filesystem::path& folder) {
  SEER_ASSIGN_OR_RETURN(const SpecialFlags flags, read_flags(folder / "tokenizer_config.json"));
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const std::string file = (folder / "tokenizer.model").string();
  const auto status = model->Load(file);
  if (!status.ok()) return fail(Code::kCorrupt, file, " is not a SentencePiece model: ", status.ToString());
  return std::shared_ptr<const Tokenizer>(std::make_shared<SentencePieceTokenizer>(std::move(model), flags));
}

#endif

}  // namespace seer
