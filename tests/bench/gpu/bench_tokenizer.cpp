// bench_tokenizer <model folder> <text file> [<file for the ids>]: encodes the text, document by document (split at NUL
// bytes), and decodes it again; prints one JSON line. With a third argument the ids are written there as int32, each
// document ended by -1, for a comparison with another tokenizer (tests/integration/tokenizer_151k.sh).
// Exits with 1 if a document does not come back exactly (`round_trip` false) and 2 if something cannot be read.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gpu/text/tokenizer.h"

namespace {

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> read_documents(const char* file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<std::string> documents;
  for (std::string document; std::getline(in, document, '\0');) documents.push_back(document);
  return documents;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer <model folder> <text file> [<file for the ids>]\n");
    return 2;
  }
  seer::Result<std::shared_ptr<const seer::Tokenizer>> tokenizer = seer::fail(seer::Code::kNotFound, "not loaded");
  const double load_s = seconds_of([&] { tokenizer = seer::load_tokenizer(argv[1]); });
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().detail.c_str());
    return 2;
  }
  const std::vector<std::string> documents = read_documents(argv[2]);
  size_t text_bytes = 0;
  for (const std::string& document : documents) text_bytes += document.size();

  std::vector<std::vector<int32_t>> ids;
  bool encoded_all = true;
  const std::clock_t cpu_start = std::clock();  // of this one thread: what counts on a machine that others use too
  const double encode_s = seconds_of([&] {
    for (const std::string& document : documents) {
      auto encoded = (*tokenizer)->encode(document);
      encoded_all &= encoded.ok();
      ids.push_back(encoded.ok() ? *std::move(encoded) : std::vector<int32_t>{});
    }
  });
  const double encode_cpu_s = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  std::vector<std::string> decoded;
  const double decode_s = seconds_of([&] {
    for (const auto& document : ids) decoded.push_back((*tokenizer)->decode(document));
  });
  const bool round_trip = encoded_all && decoded == documents;

  size_t tokens = 0;
  for (const auto& document : ids) tokens += document.size();
  if (argc > 3) {
    std::ofstream out(argv[3], std::ios::binary);
    const int32_t end = -1;
    for (const auto& document : ids) {
      out.write(reinterpret_cast<const char*>(document.data()), static_cast<std::streamsize>(document.size() * 4));
      out.write(reinterpret_cast<const char*>(&end), 4);
    }
  }
  const double mb = static_cast<double>(text_bytes) / 1e6;
  const nlohmann::json line = {{"bench", "tokenizer"},
                               {"vocab_size", (*tokenizer)->vocab_size()},
                               {"documents", documents.size()},
                               {"text_bytes", text_bytes},
                               {"tokens", tokens},
                               {"load_s", load_s},
                               {"encode_mb_per_s", mb / encode_s},
                               {"encode_mb_per_cpu_s", mb / encode_cpu_s},
                               {"decode_mb_per_s", mb / decode_s},
                               {"round_trip", round_trip}};
  std::printf("%s\n", line.dump().c_str());
  return round_trip ? 0 : 1;
}
