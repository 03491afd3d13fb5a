// Measures drafting at its limits: a tree driven past its limit, the drop of a large group, and an instance whose groups do not
// all fit into memory, in sync with a draft server that has all of their tokens.
//   bench_draft_limits [--tree-bytes 134217728] [--drafter-bytes 536870912] [--groups 64] [--tokens 22000] [--syncs 500]
// Groups have 16 members of --tokens tokens; one passage in eight is common to the group. Prints one JSON line for each:
//   tree     append_us_p50, _max   CPU time of one append of 8 tokens, while three times as many tokens come as the limit holds
//            append_indexed_max    most tokens that one append indexed; the same on every machine
//            bytes_max             largest size of the tree
//   drop     call_us_max           longest call of a drafter that dropped trees; each call brings 8 tokens
//   sync     fetched_tokens        in all syncs; distinct_tokens: the different ones among them
//            refetched_tokens      per sync, in the last fifth of the syncs: tokens that were fetched before
//            sync_us               CPU time of one of these syncs, with the server's part
//            dropped_tokens, dropped_trees, refused_groups   see DraftLosses
// CPU time is the thread's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "actors/policy/draft/group_drafter.h"
#include "actors/policy/draft/group_logs.h"

namespace {

using namespace seer;
using Tokens = std::vector<int32_t>;

constexpr uint32_t kMembers = 16;
constexpr size_t kPiece = 8;
constexpr int64_t kAnswerTokensMax = 65536;  // DraftServerConfig::answer_tokens_max

struct Options {
  int64_t tree_bytes = 128 << 20;
  size_t drafter_bytes = 512 << 20;
  uint32_t groups = 64;
  size_t tokens = 22'000;
  int64_t syncs = 500;
};

double cpu_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

/// Passages of 32 tokens: one in eight is the group's.
Tokens member_text(uint32_t group, uint32_t member, size_t count) {
  std::mt19937 common(group), own(group * 1000 + member + 1);
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) {
    const auto shared = static_cast<int32_t>(common() % 50'000), mine = static_cast<int32_t>(own() % 50'000);
    tokens[i] = i / 32 % 8 == 0 ? shared : mine;
  }
  return tokens;
}

nlohmann::ordered_json run_tree(const Options& options) {
  const size_t life_tokens = static_cast<size_t>(options.tree_bytes) / 40 * 3 / kMembers;
  DraftScores scores;
  DraftTree tree({.bytes_max = options.tree_bytes}, {}, scores);
  std::vector<Tokens> texts;
  for (uint32_t m = 0; m < kMembers; ++m) texts.push_back(member_text(1, m, life_tokens));
  std::vector<double> us;
  int64_t indexed_max = 0;
  size_t bytes_max = 0;
  for (size_t at = 0; at + kPiece <= life_tokens; at += kPiece)
    for (uint32_t m = 0; m < kMembers; ++m) {
      const int64_t indexed = tree.indexed_tokens();
      const double start = cpu_us();
      tree.append(m, static_cast<int64_t>(at), std::span(texts[m]).subspan(at, kPiece));
      us.push_back(cpu_us() - start);
      indexed_max = std::max(indexed_max, tree.indexed_tokens() - indexed);
      bytes_max = std::max(bytes_max, tree.bytes());
    }
  const double longest = *std::ranges::max_element(us);
  std::ranges::nth_element(us, us.begin() + std::ssize(us) / 2);
  return {{"bench", "draft_limits"},
          {"case", "tree"},
          {"cap_bytes", options.tree_bytes},
          {"tokens", life_tokens * kMembers},
          {"append_us_p50", us[us.size() / 2]},
          {"append_us_max", longest},
          {"append_indexed_max", indexed_max},
          {"bytes_max", bytes_max}};
}

/// The token log of a request that has written so many tokens of the text.
TokenLog written(const Tokens& text, size_t tokens) {
  TokenLog log(Tokens{1, 2, 3});
  log.append(std::span(text).first(tokens));
  return log;
}

nlohmann::ordered_json run_drop(const Options& options) {
  GroupDrafter drafter({.bytes_max = options.drafter_bytes / 4});
  double longest = 0;
  int64_t drops = 0;
  for (uint32_t g = 0; g < 16; ++g) {
    drafter.running(std::vector{GroupId{g}});
    for (uint32_t m = 0; m < kMembers; ++m) {
      const Tokens text = member_text(g, m, options.tokens);
      TokenLog log(Tokens{1, 2, 3});
      for (size_t at = 0; at + kPiece <= text.size(); at += kPiece) {
        log.append(std::span(text).subspan(at, kPiece));
        const size_t trees = drafter.group_count() + (at == 0 && m == 0);
        const double start = cpu_us();
        drafter.learn({{GroupId{g}, m}, log});
        const double us = cpu_us() - start;
        if (drafter.group_count() >= trees) continue;
        ++drops;
        longest = std::max(longest, us);
      }
    }
  }
  return {{"bench", "draft_limits"}, {"case", "drop"}, {"tokens_per_group", kMembers * options.tokens},
          {"calls_that_dropped", drops}, {"call_us_max", longest}};
}

nlohmann::ordered_json run_sync(const Options& options) {
  GroupDrafter drafter({.bytes_max = options.drafter_bytes});
  GroupLogs server({});
  std::vector<GroupId> ids;
  std::vector<TokenLog> logs;  // of member 0 of each group, which runs here
  for (uint32_t g = 0; g < options.groups; ++g) ids.push_back(GroupId{g});
  server.register_groups(ids, 3'600'000'000, 0);
  for (uint32_t g = 0; g < options.groups; ++g) {
    for (uint32_t m = 0; m < kMembers; ++m) server.append({ids[g], m, 0, member_text(g, m, options.tokens)}, 0);
    logs.push_back(written(member_text(g, 0, options.tokens), options.tokens));
  }
  std::map<std::pair<uint32_t, uint32_t>, int64_t> seen;  // group, member: fetched up to here
  int64_t fetched = 0, distinct = 0, refetched_late = 0;
  double late_us = 0;
  const int64_t late_syncs = std::max<int64_t>(1, options.syncs / 5);
  size_t bytes_max = 0;
  for (int64_t sync = 0; sync < options.syncs; ++sync) {
    const bool is_late = sync >= options.syncs - late_syncs;
    const double start = cpu_us();
    drafter.running(ids);
    for (uint32_t g = 0; g < options.groups; ++g) drafter.learn({{ids[g], 0}, logs[g]});
    CstFetched answer{.server = NodeId{0}, .parts = {}, .pasts = {}, .wanted = {}};
    int64_t tokens = 0;
    for (GroupId id : ids)
      if (const auto cursor = drafter.cursor(id)) tokens += server.fetch(*cursor, kAnswerTokensMax - tokens, 0, answer);
    drafter.fetched(answer);
    const double us = cpu_us() - start;
    bytes_max = std::max(bytes_max, drafter.bytes());
    int64_t news = 0;
    for (const CstTokens& part : answer.parts) {
      int64_t& end = seen[{static_cast<uint32_t>(part.group.index), part.sample}];
      const int64_t part_end = part.position + std::ssize(part.tokens);
      news += std::max<int64_t>(0, part_end - std::max(end, part.position));
      end = std::max(end, part_end);
    }
    fetched += tokens;
    distinct += news;
    if (is_late) refetched_late += tokens - news, late_us += us;
  }
  const DraftLosses losses = drafter.losses();
  return {{"bench", "draft_limits"},
          {"case", "sync"},
          {"groups", options.groups},
          {"tokens_per_group", kMembers * options.tokens},
          {"fetched_tokens", fetched},
          {"distinct_tokens", distinct},
          {"refetched_tokens", refetched_late / late_syncs},
          {"sync_us", late_us / static_cast<double>(late_syncs)},
          {"bytes_max", bytes_max},
          {"dropped_tokens", losses.dropped_tokens},
          {"dropped_trees", losses.dropped_trees},
          {"refused_groups", losses.refused_groups}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto stop = [](const std::string& sentence) {
    std::fprintf(stderr, "bench_draft_limits: %s\n", sentence.c_str());
    std::exit(2);
  };
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    char* end = nullptr;
    const long long value = i + 1 < argc ? std::strtoll(argv[i + 1], &end, 10) : 0;
    if (end == nullptr || *end != 0 || value < 1) stop(option + ": expected a whole number of at least 1 behind it");
    if (option == "--tree-bytes" && value <= 512 << 20)
      options.tree_bytes = value;
    else if (option == "--drafter-bytes")
      options.drafter_bytes = static_cast<size_t>(value);
    else if (option == "--groups")
      options.groups = static_cast<uint32_t>(value);
    else if (option == "--tokens")
      options.tokens = static_cast<size_t>(value);
    else if (option == "--syncs")
      options.syncs = value;
    else
      stop(option + " " + argv[i + 1] + ": no such option or value; they are listed at the top of bench_draft_limits.cpp");
  }
  for (const auto run : {run_tree, run_drop, run_sync}) {
    std::printf("%s\n", run(options).dump().c_str());
    std::fflush(stdout);
  }
}
