// Groups of token sequences in a file, for measuring drafts. Little endian:
//   "SEERGRP1"  u32 groups  u32 vocab
//   per group:     u32 name_bytes  name  u32 sequences
//   per sequence:  u32 tokens  int32[tokens], each in [0, vocab)
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "protocols/result.h"

namespace seer {

struct TokenGroup {
  std::string name;
  std::vector<std::vector<int32_t>> sequences;
};

/// Errors: kIo, kCorrupt; the detail names the file and what was expected.
inline Result<std::vector<TokenGroup>> read_groups(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(Code::kIo, path, ": cannot be read; expected a file of token groups");
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (bytes.compare(0, 8, "SEERGRP1") != 0)
    return fail(Code::kCorrupt, path, ": not a file of token groups; expected it to begin with SEERGRP1");
  size_t at = 8;
  const auto left = [&] { return bytes.size() - at; };
  const auto cut = [&](const char* what) {
    return fail(Code::kCorrupt, path, ": ends at byte ", bytes.size(), "; expected ", what, " at byte ", at);
  };
  const auto u32 = [&](uint32_t& value) {
    if (left() < sizeof(value)) return false;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    at += sizeof(value);
    return true;
  };
  uint32_t group_count = 0, vocab = 0;
  if (!u32(group_count) || !u32(vocab)) return cut("the numbers of groups and of token ids");
  std::vector<TokenGroup> groups;
  while (groups.size() < group_count) {
    TokenGroup& group = groups.emplace_back();
    uint32_t name_bytes = 0, sequence_count = 0;
    if (!u32(name_bytes) || left() < name_bytes) return cut("the name of a group");
    group.name = bytes.substr(at, name_bytes);
    at += name_bytes;
    if (!u32(sequence_count)) return cut("the number of sequences of a group");
    while (group.sequences.size() < sequence_count) {
      uint32_t count = 0;
      if (!u32(count) || left() / sizeof(int32_t) < count) return cut("a sequence of tokens");
      std::vector<int32_t>& tokens = group.sequences.emplace_back(count);
      if (count > 0) std::memcpy(tokens.data(), bytes.data() + at, count * sizeof(int32_t));
      at += count * sizeof(int32_t);
      for (int32_t token : tokens)
        if (token < 0 || static_cast<uint32_t>(token) >= vocab)
          return fail(Code::kCorrupt, path, ": token ", token, " in group ", group.name, "; expected 0 to ", vocab,
                      " - 1");
    }
  }
  if (left() > 0) return fail(Code::kCorrupt, path, ": ", left(), " bytes behind the last group; expected none");
  return groups;
}

}  // namespace seer
