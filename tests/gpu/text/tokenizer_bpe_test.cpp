#include "gpu/text/tokenizer_bpe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "gpu/text/text_vectors.h"
#include "gpu/text/utf8.h"
#include "protocols/cpu_time.h"

namespace seer {
namespace {

using Ids = std::vector<int32_t>;

/// Null where the file needs utf8proc (NFC in its added tokens) and it is not built in.
std::shared_ptr<const Tokenizer> load(const std::string& name) {
  auto tokenizer = load_tokenizer(text_data(name));
  if (!tokenizer.ok() && tokenizer.error().code == Code::kUnavailable) {
    MESSAGE("skipped: ", name, " needs utf8proc, but this build was made without it");
    return nullptr;
  }
  REQUIRE_MESSAGE(tokenizer.ok(), (tokenizer.ok() ? "" : tokenizer.error().detail));
  return *tokenizer;
}

/// Where the reference gives U+FFFD (bytes that are no text, added tokens read as the byte alphabet), Seer gives the
/// bytes; the tests below see to those.
bool same_text(const std::string& ours, const std::string& reference) {
  return ours == reference || reference.find("\uFFFD") != std::string::npos;
}

std::string join_pieces(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) text += tokenizer.piece(id);
  return text;
}

/// A byte-level tokenizer.json of the bytes alone, with fields put over it.
nlohmann::json small_file(const nlohmann::json& fields = nlohmann::json::object()) {
  nlohmann::json file = read_vectors("gpt2_like/tokenizer.json");
  file["pre_tokenizer"]["add_prefix_space"] = false;
  file.merge_patch(fields);
  return file;
}

Result<std::shared_ptr<const Tokenizer>> parse(const nlohmann::json& file) {
  return parse_bpe_tokenizer(file.dump(), "tokenizer.json");
}

std::string refusal(const nlohmann::json& fields) {
  const auto tokenizer = parse(small_file(fields));
  return tokenizer.ok() ? "accepted" : tokenizer.error().detail;
}

TEST_CASE("bpe tokenizer: gives the reference's ids and texts") {
  for (const std::string name :
       {"qwen_like", "llama3_like", "gpt2_like", "llama2_like", "metaspace", "metaspace_fused"}) {
    const auto tokenizer = load(name);
    if (!tokenizer) continue;
    const auto vectors = read_vectors(name + "/vectors.json");
    REQUIRE(vectors.size() > 100);
    int skipped = 0;
    for (const auto& vector : vectors) {
      CAPTURE(name);
      CAPTURE(vector["text"].dump());
      const auto ids = tokenizer->encode(vector["text"].get<std::string>());
      if (!ids.ok() && ids.error().code == Code::kUnavailable) {
        ++skipped;
        continue;
      }
      REQUIRE_MESSAGE(ids.ok(), (ids.ok() ? "" : ids.error().detail));
      CHECK(*ids == vector["ids"].get<Ids>());
      CHECK(same_text(tokenizer->decode(*ids), vector["decoded"]));
      CHECK(same_text(tokenizer->decode(*ids, {.skip_special = true}), vector["decoded_no_special"]));
      const auto framed = tokenizer->encode(vector["text"].get<std::string>(), {.add_special = true});
      CHECK(*framed == vector.value("framed", vector["ids"]).get<Ids>());
    }
    if (skipped > 0) MESSAGE("skipped: ", skipped, " texts of ", name, " that need utf8proc, but this build was made without it");
  }
}

TEST_CASE("bpe tokenizer: what LlamaTokenizerFast puts before and behind a text is what tokenizer_config.json says") {
  const auto framed = [](const nlohmann::json& config) -> Result<Ids> {
    const auto tokenizer = parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(config, "tokenizer_config.json"));
    if (!tokenizer.ok()) return tokenizer.error();
    return (*tokenizer)->encode("a", {.add_special = true});
  };
  const auto plain = parse(small_file()).value();
  const Ids before = *plain->encode("a", {.add_special = true}), body = *plain->encode("a"), token = *plain->encode("b"), other = *plain->encode("c");
  nlohmann::json config = {{"tokenizer_class", "LlamaTokenizerFast"}, {"add_bos_token", true}, {"bos_token", {{"content", "b"}}}, {"add_eos_token", false}, {"eos_token", "c"}};
  CHECK(*framed(config) == Ids{token[0], body[0]});
  config["add_eos_token"] = true;
  CHECK(*framed(config) == Ids{token[0], body[0], other[0]});
  config["add_bos_token"] = nullptr;
  config["add_eos_token"] = nullptr;
  CHECK(*framed(config) == before);
  config["add_bos_token"] = true;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  CHECK(*framed(config) == before);
  config["tokenizer_class"] = "LlamaTokenizer";
  config["bos_token"] = "no such token";
  CHECK(framed(config).error().detail == "tokenizer_config.json: bos_token is 'no such token', which is no token, though add_bos_token is true");
}

TEST_CASE("bpe tokenizer: what tokenizer_config.json says of an added token counts, and it may add some") {
  const auto plain = parse(small_file()).value();
  const int32_t size = plain->vocab_size(), a = plain->encode("a")->at(0), b = *plain->id_of("b");
  const nlohmann::json config = {{"added_tokens_decoder",
                                  {{std::to_string(size), {{"content", "<|new|>"}, {"special", true}}},
                                   {std::to_string(b), {{"content", "b"}, {"special", true}, {"lstrip", true}, {"normalized", false}}}}}};
  const auto loaded = parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(config, "tokenizer_config.json"));
  REQUIRE_MESSAGE(loaded.ok(), loaded.error().detail);
  CHECK((*loaded)->vocab_size() == size + 1);
  CHECK(*(*loaded)->encode("a<|new|>a") == Ids{a, size, a});
  CHECK(*(*loaded)->encode("a  ba") == Ids{a, b, a});
  CHECK((*loaded)->decode(Ids{a, b, size}, {.skip_special = true}) == "a");
  // Under another id the file's counts; an id that the file gives to another token stays that one's.
  const nlohmann::json other = {{"added_tokens_decoder", {{std::to_string(size + 7), {{"content", "b"}, {"special", true}}}, {std::to_string(a), {{"content", "<|x|>"}}}}}};
  const auto moved = parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(other, "tokenizer_config.json"));
  REQUIRE_MESSAGE(moved.ok(), moved.error().detail);
  CHECK((*moved)->vocab_size() == size);
  CHECK((*moved)->id_of("b") == b);
  CHECK((*moved)->is_special(b));
  CHECK_FALSE((*moved)->id_of("<|x|>"));
  const nlohmann::json wrong = {{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}};
  CHECK(parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(wrong, "tokenizer_config.json")).error().detail ==
        "tokenizer_config.json: added_tokens_decoder has the key 'x'; expected a token id");
}

TEST_CASE("bpe tokenizer: tokens that tokenizer_config.json names are special, whatever the file says of them") {
  const auto plain = parse(small_file()).value();
  const int32_t a = plain->encode("a")->at(0), b = *plain->id_of("b");
  const nlohmann::json config = {{"eos_token", {{"content", "b"}}}, {"pad_token", nullptr}, {"model_input_names", "a"}};
  const auto named = parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(config, "tokenizer_config.json")).value();
  CHECK_FALSE(plain->is_special(b));
  CHECK(named->is_special(b));
  CHECK_FALSE(named->is_special(a));
  CHECK(named->decode(Ids{a, b}, {.skip_special = true}) == "a");
  const nlohmann::json more = {{"additional_special_tokens", {"a", {{"content", "b"}}, 7, "none"}}};
  const auto both = parse_bpe_tokenizer(small_file().dump(), "tokenizer.json", JsonAt(more, "tokenizer_config.json")).value();
  CHECK((both->is_special(a) && both->is_special(b)));
}

TEST_CASE("bpe tokenizer: pieces joined are the decoded text; Llama 2 drops the first space of a text only") {
  for (const std::string name : {"llama3_like", "gpt2_like"}) {
    const auto tokenizer = load(name);
    for (const auto& vector : read_vectors(name + "/vectors.json")) {
      const auto ids = vector["ids"].get<Ids>();
      CHECK(join_pieces(*tokenizer, ids) == tokenizer->decode(ids));
    }
  }
  const auto llama2 = load("llama2_like");
  const Ids ids = *llama2->encode("the rollout\n");
  CHECK(llama2->decode(ids) == "the rollout\n");
  CHECK(join_pieces(*llama2, ids) == " the rollout\n");
}

TEST_CASE("bpe tokenizer: random text and random bytes come back exactly") {
  const auto tokenizer = load("llama3_like");  // no normalizer
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    std::string text;
    std::string bytes;
    for (uint32_t n = rng() % 80; n > 0; --n) {
      const uint32_t plane_bits = 1 + rng() % 20;
      const uint32_t value = rng() & ((1u << plane_bits) - 1);
      if (value < 0xd800 || value >= 0xe000) utf8_append(text, value);
      bytes.push_back(static_cast<char>(rng()));
      if (rng() % 3 == 0) bytes += text.substr(text.size() / 2);
    }
    CHECK(tokenizer->decode(*tokenizer->encode(text)) == text);
    CHECK(tokenizer->decode(*tokenizer->encode(bytes)) == bytes);
  }
}

TEST_CASE("bpe tokenizer: bytes that are not UTF-8 break the text, and fall back as documented") {
  const std::string bytes = "the\xff\xc3 the";
  CHECK(load("llama3_like")->decode(*load("llama3_like")->encode(bytes)) == bytes);

  const auto llama2 = load("llama2_like");
  const Ids ids = *llama2->encode(bytes);
  const auto byte_id = llama2->id_of("<0xFF>");
  REQUIRE(byte_id);
  CHECK(std::count(ids.begin(), ids.end(), *byte_id) == 1);
  CHECK(llama2->piece(*byte_id) == "\xff");

  const auto metaspace = load("metaspace");  // no byte fallback: as U+FFFD, which it does not know
  CHECK(metaspace->encode("\xff")->front() == metaspace->id_of("<unk>"));
}

TEST_CASE("bpe tokenizer: random bytes crash no kind of tokenizer") {
  for (const std::string name : {"qwen_like", "gpt2_like", "llama2_like", "metaspace_fused"}) {
    const auto tokenizer = load(name);
    if (!tokenizer) continue;
    for (uint32_t seed = 1; seed <= 100; ++seed) {
      CAPTURE(seed);
      std::mt19937 rng(seed);
      std::string bytes(rng() % 200, '\0');
      for (char& byte : bytes) byte = static_cast<char>(rng() % 4 == 0 ? rng() : ' ' + rng() % 90);
      const auto ids = tokenizer->encode(bytes, {.add_special = true});
      if (ids.ok()) tokenizer->decode(*ids);
    }
    const Ids odd = {-1, INT32_MIN, INT32_MAX, tokenizer->vocab_size()};
    CHECK(tokenizer->decode(odd) == "");
    CHECK(tokenizer->piece(-1) == "");
    CHECK_FALSE(tokenizer->is_special(INT32_MAX));
  }
}

TEST_CASE("bpe tokenizer: a long run of one character takes no quadratic time") {
  const auto tokenizer = load("llama2_like");  // no pre-tokenizer: the text is one word
  const auto encode_ns = [&](size_t size) {
    const std::string text(size, 'a');
    const int64_t begin = thread_cpu_ns();
    const Ids ids = *tokenizer->encode(text);
    const int64_t took = thread_cpu_ns() - begin;
    CHECK(tokenizer->decode(ids) == text);
    return took;
  };
  const int64_t short_ns = encode_ns(100'000);
  CHECK(encode_ns(1'000'000) < 40 * short_ns);  // 100 times as long, were it quadratic
}

TEST_CASE("bpe tokenizer: many threads get the same ids") {
  const auto tokenizer = load("llama3_like");
  const std::string text = "the rollout of 12345 tokens, it's <|begin|> \n\n 模型";
  const Ids expected = *tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> same = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) same += *tokenizer->encode(text) == expected;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(same == 800);
}

TEST_CASE("bpe tokenizer: knows its tokens by name") {
  const auto tokenizer = load("qwen_like");
  if (!tokenizer) return;
  const auto begin = tokenizer->id_of("<|begin|>");
  REQUIRE(begin);
  CHECK(tokenizer->is_special(*begin));
  CHECK(tokenizer->piece(*begin) == "<|begin|>");
  CHECK_FALSE(tokenizer->is_special(*tokenizer->id_of("<strip>")));
  CHECK_FALSE(tokenizer->id_of("no such token"));
  CHECK(tokenizer->vocab_size() == *tokenizer->id_of("<strip>") + 1);
  CHECK(tokenizer->piece(*tokenizer->id_of("Ġ")) == " ");
}

TEST_CASE("bpe tokenizer: the toy model's pattern cuts words of letters, all else byte by byte") {
  nlohmann::json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "[a-z]+|[^a-z]"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}}}}};
  const auto tokenizer = parse(file);
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->encode("A047 the\n")->size() == 7);
}

TEST_CASE("bpe tokenizer: an added token keeps its own text where the byte alphabet would read it otherwise") {
  const auto tokenizer = parse(small_file({{"added_tokens", {{{"id", 1000}, {"content", "é à"}, {"special", true}}}}}));
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->decode(*(*tokenizer)->encode("xé ày")) == "xé ày");
  CHECK((*tokenizer)->vocab_size() == 1001);
  CHECK((*tokenizer)->piece(999) == "");  // no token has this id
}

TEST_CASE("bpe tokenizer: a character without a token is an error, never dropped") {
  nlohmann::json file = small_file({{"pre_tokenizer", nullptr}, {"decoder", nullptr}});
  const auto tokenizer = parse(file);
  REQUIRE(tokenizer.ok());
  const auto ids = (*tokenizer)->encode("模");
  REQUIRE_FALSE(ids.ok());
  CHECK(ids.error().detail == "the tokenizer has no token for '模' and no unknown token");
}

TEST_CASE("bpe tokenizer: an unsupported setting is refused with file, field and name") {
  CHECK(refusal({{"model", {{"type", "Unigram"}}}}) ==
        "tokenizer.json: model.type is 'Unigram', which is not supported (BPE is)");
  CHECK(refusal({{"model", {{"end_of_word_suffix", "</w>"}}}}) ==
        "tokenizer.json: model.end_of_word_suffix is '</w>'; only an empty one is supported");
  CHECK(refusal({{"model", {{"dropout", 0.1}}}}) ==
        "tokenizer.json: model.dropout would make tokens random; it must be null");
  CHECK(refusal({{"model", {{"merges", {"a zzz"}}}}}) ==
        "tokenizer.json: model.merges[0] needs the token 'zzz', which is not in the vocab");
  CHECK(refusal({{"model", {{"merges", {"a b c"}}}}}) ==
        "tokenizer.json: model.merges[0] is 'a b c', not two tokens with a space between");
  CHECK(refusal({{"model", {{"vocab", {{"new", 0}}}}}}).find("as '") != std::string::npos);
  CHECK(refusal({{"model", {{"vocab", {{"new", -1}}}}}}) ==
        "tokenizer.json: model.vocab.new must be an id from 0 to 16777215");
  CHECK(refusal({{"model", {{"unk_token", "<nope>"}}}}) ==
        "tokenizer.json: model.unk_token is '<nope>', which is not in the vocab");
  CHECK(refusal({{"decoder", {{"type", "WordPiece"}}}}).starts_with("tokenizer.json: decoder.type is 'WordPiece'"));
  CHECK(refusal({{"post_processor", {{"type", "Odd"}}}}).starts_with("tokenizer.json: post_processor.type is 'Odd'"));
  CHECK(refusal({{"added_tokens", {{{"id", 0}, {"content", "<x>"}}}}}) ==
        "tokenizer.json: added_tokens gives id 0 to '<x>'; it is that of 'Ā'");
  CHECK(refusal({{"added_tokens", {{{"id", 5000}, {"content", "!"}}}}}) ==
        "tokenizer.json: added_tokens names '!', which has another id already");
}

TEST_CASE("bpe tokenizer: a file that is no tokenizer is an error that names the path") {
  CHECK(parse_bpe_tokenizer("{", "x.json").error().detail == "x.json:1 is not valid JSON");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK(parse_bpe_tokenizer(cat("{\"normalizer\": ", deep, "}"), "x.json").error().detail == "x.json is nested deeper than 64 levels");
  CHECK(parse_bpe_tokenizer("[]", "x.json").error().detail ==
        "x.json: model.type is 'none', which is not supported (BPE is)");
}

}  // namespace
}  // namespace seer
