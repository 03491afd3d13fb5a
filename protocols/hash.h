// Deterministic 64-bit mixing: seeds of samples, prefix hashes, hashes of KV. The same on every machine; never std::hash.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace seer {

/// Finaliser of SplitMix64: a bijection of 64-bit values whose output bits all depend on all input bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr uint64_t hash_pair(uint64_t a, uint64_t b) { return mix64(mix64(a) ^ (b + 0x632be59bd9b4e019ull)); }

constexpr uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  uint64_t h = mix64(seed ^ text.size());
  for (char c : text) h = hash_pair(h, static_cast<unsigned char>(c));
  return h;
}

/// A hash for long texts, eight bytes at a time. Differs from hash_text().
inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t h = mix64(bytes.size());
  for (; bytes.size() >= sizeof h; bytes.remove_prefix(sizeof h)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    h = hash_pair(h, word);
  }
  return hash_pair(h, hash_text(bytes));
}

/// Seed of one sample. Never collides within a group (hash_pair is a bijection of `b`) and does not depend on scheduling.
constexpr uint64_t sample_seed(uint64_t run_seed, uint64_t group, uint64_t sample) {
  return hash_pair(hash_pair(run_seed, group), sample);
}

}  // namespace seer
