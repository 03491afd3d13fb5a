// Measures the cost of the draft tree and the value of its drafts, on groups of token sequences from a file (group_file.h).
//   bench_draft --groups FILE [--references 15] [--heldouts 1] [--mode linear|tree|peer] [--max-draft 16]
//               [--min-probability P] [--spec-factor 2] [--own-history] [--past 0]
//               [--past-kind alike|other|mixed|none] [--repeats 3] [--json]
// In each group the first --references members are appended, interleaved, in pieces of 8 tokens; each of the last
// --heldouts is then replayed on a new tree with these references. Each step takes a draft, then the draft tokens that match the
// member's own, then one more token, to the member's end. One DraftScores learns through the whole run.
//   append_mtok_s       million tokens per second of CPU time, of references (without any: of the held-out members)
//   bytes_per_token     growth of the resident set by these trees, all groups at once, with log and scores
//   draft_us_p50, _p99  CPU time of one draft, without that of reading the clock
//   acceptance_length   tokens gained per step, bonus token included
//   drafted_per_step    tokens proposed per step
//   predicted_ratio     of the second half of the replays: draft tokens predicted to be accepted / those that were
//   calibration         the same by buckets of the predicted probability, [0, 0.1), [0.1, 0.2), ...: tokens drafted, the
//                       mean of their predictions, and the share of them that was accepted. The first half is warm-up.
// The first --past references become responses of an earlier iteration, given before the others are appended: the references
// themselves (alike), as many of the next group, which has another prompt (other), one or the other by group (mixed), or none,
// to compare with.
// Mode peer drafts as SuffixDecoding does (suffix_decoding.h), to compare acceptance; its times are not the original's.
// CPU time is the thread's. --repeats: number of runs; times are medians over them. Default of --min-probability: 0.09 linear,
// 0.01 tree, 0.1 peer.
#include <unistd.h>
#include <ctime>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/policy/draft/draft_tree.h"
#include "bench/draft/group_file.h"
#include "bench/draft/suffix_decoding.h"

namespace {

using namespace seer;

constexpr size_t kPieceTokens = 8;

enum class PastKind { kAlike, kOther, kMixed, kNone };
constexpr std::array<const char*, 4> kPastKinds = {"alike", "other", "mixed", "none"};

struct Options {
  std::string groups;
  size_t references = 15;
  size_t heldouts = 1;
  int64_t repeats = 3;
  bool peer = false;
  float spec_factor = 2;
  bool own_history = false;
  size_t past = 0;
  PastKind past_kind = PastKind::kAlike;
  DraftLimits limits = {.max_tokens = 16};
  bool json = false;
};

/// Draft tokens whose acceptance was predicted to be about the same.
struct Bucket {
  int64_t tokens = 0, accepted = 0;
  double predicted = 0;  // sum over the tokens
};

struct Figures {
  double append_mtok_s = 0;
  double draft_us_p50 = 0, draft_us_p99 = 0;
  int64_t tokens = 0, steps = 0, drafted = 0;  // of the replay
  bool warm = false;                           // half of the replays are over: calibration counts
  std::array<Bucket, 10> calibration;
};

double cpu_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double clock_cost_us() {
  std::vector<double> costs;
  for (int i = 0; i < 1000; ++i) {
    const double start = cpu_us();
    costs.push_back(cpu_us() - start);
  }
  return quantile(costs, 0.5);
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::unique_ptr<DraftTree> make_tree(const Options& options, DraftScores& scores) {
  return std::make_unique<DraftTree>(DraftTreeConfig{.bytes_max = 512 << 20, .own_history_only = options.own_history},
                                     std::span<const int32_t>{}, scores);
}

/// Members [from, to) of the group, a piece of each in turn. Returns the tokens appended.
int64_t append_members(DraftTree& tree, const TokenGroup& group, size_t from, size_t to) {
  int64_t tokens = 0;
  bool more = true;
  for (size_t at = 0; more; at += kPieceTokens) {
    more = false;
    for (size_t i = from; i < to; ++i) {
      const std::vector<int32_t>& member = group.sequences[i];
      if (at >= member.size()) continue;
      const size_t count = std::min(kPieceTokens, member.size() - at);
      tokens += tree.append(static_cast<uint32_t>(i), static_cast<int64_t>(at), std::span(member).subspan(at, count));
      more = true;
    }
  }
  return tokens;
}

/// The references of a group: those of an earlier iteration, and the others. Returns the tokens appended.
int64_t append_references(DraftTree& tree, const Options& options, const std::vector<TokenGroup>& groups, size_t i) {
  const bool other = options.past_kind == PastKind::kOther || (options.past_kind == PastKind::kMixed && i % 2 == 1);
  const TokenGroup& group = groups[other ? (i + 1) % groups.size() : i];
  if (options.past > 0 && options.past_kind != PastKind::kNone) tree.add_past(std::span(group.sequences).first(options.past));
  return append_members(tree, groups[i], options.past, options.references);
}

/// Replays a member; adds to `figures` and the time of each draft to `draft_us`.
void replay(DraftTree& tree, uint32_t sample, const std::vector<int32_t>& member, const DraftLimits& limits,
            double clock_us, Figures& figures, std::vector<double>& draft_us) {
  Draft draft;
  for (size_t at = 0; at < member.size();) {
    const double start = cpu_us();
    tree.draft(sample, limits, draft);
    draft_us.push_back(std::max(0.0, cpu_us() - start - clock_us));
    size_t gained = 0;
    int32_t row = 0;
    for (size_t i = 0; i < draft.tokens.size() && at + gained < member.size(); ++i) {
      const bool accepted = draft.parents[i] == row && draft.tokens[i] == member[at + gained];
      if (figures.warm) {
        Bucket& bucket = figures.calibration[std::min<size_t>(9, static_cast<size_t>(draft.probabilities[i] * 10))];
        ++bucket.tokens;
        bucket.accepted += accepted;
        bucket.predicted += draft.probabilities[i];
      }
      if (!accepted) continue;
      row = static_cast<int32_t>(i) + 1;
      ++gained;
    }
    gained = std::min(gained + 1, member.size() - at);
    tree.append(sample, static_cast<int64_t>(at), std::span(member).subspan(at, gained));
    at += gained;
    figures.tokens += static_cast<int64_t>(gained);
    figures.drafted += static_cast<int64_t>(draft.tokens.size());
    ++figures.steps;
  }
}

void replay_peer(SuffixDecoding& peer, const std::vector<int32_t>& member, const Options& options, Figures& figures) {
  std::vector<int32_t> draft;
  for (size_t at = 0; at < member.size();) {
    peer.draft(options.limits.max_tokens, options.spec_factor, options.limits.min_probability, draft);
    size_t gained = 0;
    while (gained < draft.size() && at + gained < member.size() && draft[gained] == member[at + gained]) ++gained;
    gained = std::min(gained + 1, member.size() - at);
    peer.append(std::span(member).subspan(at, gained));
    at += gained;
    figures.tokens += static_cast<int64_t>(gained);
    figures.drafted += static_cast<int64_t>(draft.size());
    ++figures.steps;
  }
}

/// The trees that the costs of appending are measured on, all of them at once.
double append_all(const Options& options, const std::vector<TokenGroup>& groups, DraftScores& scores,
                  std::vector<std::unique_ptr<DraftTree>>& trees, int64_t& tokens) {
  const double start = cpu_us();
  for (size_t i = 0; i < groups.size(); ++i) {
    trees.push_back(make_tree(options, scores));
    const size_t members = groups[i].sequences.size();
    tokens += options.references > 0 ? append_references(*trees.back(), options, groups, i)
                                     : append_members(*trees.back(), groups[i], members - options.heldouts, members);
  }
  return cpu_us() - start;
}

Figures run(const Options& options, const std::vector<TokenGroup>& groups) {
  Figures figures;
  DraftScores scores;
  {
    std::vector<std::unique_ptr<DraftTree>> trees;
    int64_t tokens = 0;
    const double us = append_all(options, groups, scores, trees, tokens);
    figures.append_mtok_s = static_cast<double>(tokens) / us;
  }
  const double clock_us = clock_cost_us();
  std::vector<double> draft_us;
  for (size_t g = 0; g < groups.size(); ++g) {
    figures.warm = g >= groups.size() / 2;
    const std::vector<std::vector<int32_t>>& members = groups[g].sequences;
    for (size_t i = members.size() - options.heldouts; i < members.size(); ++i) {
      if (options.peer) {
        SuffixDecoding peer{std::span(members).first(options.references)};
        replay_peer(peer, members[i], options, figures);
        continue;
      }
      const std::unique_ptr<DraftTree> tree = make_tree(options, scores);
      append_references(*tree, options, groups, g);
      replay(*tree, static_cast<uint32_t>(i), members[i], options.limits, clock_us, figures, draft_us);
    }
  }
  figures.draft_us_p50 = quantile(draft_us, 0.5);
  figures.draft_us_p99 = quantile(draft_us, 0.99);
  return figures;
}

double measure_bytes_per_token(const Options& options, const std::vector<TokenGroup>& groups) {
  const int64_t before = resident_bytes();
  DraftScores scores;
  std::vector<std::unique_ptr<DraftTree>> trees;
  int64_t tokens = 0;
  append_all(options, groups, scores, trees, tokens);
  return static_cast<double>(resident_bytes() - before) / static_cast<double>(std::max<int64_t>(tokens, 1));
}

double predicted_ratio(const Figures& figures) {
  double predicted = 0;
  int64_t accepted = 0;
  for (const Bucket& b : figures.calibration) predicted += b.predicted, accepted += b.accepted;
  return predicted / static_cast<double>(std::max<int64_t>(accepted, 1));
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

[[noreturn]] void stop(const std::string& sentence) {
  std::fprintf(stderr, "bench_draft: %s\n", sentence.c_str());
  std::exit(2);
}

double number(const std::string& option, const std::string& text, double min, double max) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(value >= min && value <= max))
    stop(cat(option, " ", text, ": expected a number from ", min, " to ", max));
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  double min_probability = -1;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--json") {
      options.json = true;
    } else if (option == "--own-history") {
      options.own_history = true;
    } else {
      const bool known = option == "--groups" || option == "--references" || option == "--heldouts" ||
                         option == "--mode" || option == "--max-draft" || option == "--min-probability" ||
                         option == "--past" || option == "--past-kind" || option == "--repeats" || option == "--spec-factor";
      if (!known) stop(cat(option, ": no such option; they are listed at the top of bench_draft.cpp"));
      if (++i == argc) stop(cat(option, ": expected a value behind it"));
      const std::string value = argv[i];
      if (option == "--groups") options.groups = value;
      if (option == "--references") options.references = static_cast<size_t>(number(option, value, 0, 1e6));
      if (option == "--heldouts") options.heldouts = static_cast<size_t>(number(option, value, 1, 1e6));
      if (option == "--max-draft") options.limits.max_tokens = static_cast<int32_t>(number(option, value, 0, 1024));
      if (option == "--min-probability") min_probability = number(option, value, 0, 1);
      if (option == "--repeats") options.repeats = static_cast<int64_t>(number(option, value, 1, 1000));
      if (option == "--spec-factor") options.spec_factor = static_cast<float>(number(option, value, 0, 100));
      if (option == "--past") options.past = static_cast<size_t>(number(option, value, 0, 1e6));
      if (option == "--past-kind") {
        const auto kind = std::find(kPastKinds.begin(), kPastKinds.end(), value);
        if (kind == kPastKinds.end()) stop(cat("--past-kind ", value, ": expected alike, other, mixed or none"));
        options.past_kind = static_cast<PastKind>(kind - kPastKinds.begin());
      }
      if (option == "--mode") {
        if (value != "linear" && value != "tree" && value != "peer")
          stop(cat("--mode ", value, ": expected linear, tree or peer"));
        options.limits.tree = value == "tree";
        options.peer = value == "peer";
      }
    }
  }
  if (options.groups.empty())
    stop("--groups FILE is missing: a file of token groups, see tests/bench/draft/group_file.h");
  if (options.past > options.references)
    stop(cat("--past ", options.past, ": expected at most --references ", options.references));
  options.limits.min_probability = static_cast<float>(min_probability >= 0  ? min_probability
                                                      : options.peer        ? 0.1
                                                      : options.limits.tree ? 0.01
                                                                            : 0.09);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const Result<std::vector<TokenGroup>> groups = read_groups(options.groups);
  if (!groups) stop(groups.error().detail);
  if (groups->empty()) stop(cat(options.groups, ": has no groups; expected at least one"));
  for (const TokenGroup& group : *groups)
    if (group.sequences.size() < options.references + options.heldouts)
      stop(cat(options.groups, ": group ", group.name, " has ", group.sequences.size(), " sequences; expected ",
               options.references, " references and ", options.heldouts, " held out"));

  const double bytes_per_token = measure_bytes_per_token(options, *groups);  // first: on memory not used before
  std::vector<double> append, p50, p99;
  Figures figures;
  for (int64_t i = 0; i < options.repeats; ++i) {
    figures = run(options, *groups);
    append.push_back(figures.append_mtok_s);
    p50.push_back(figures.draft_us_p50);
    p99.push_back(figures.draft_us_p99);
  }
  const auto steps = static_cast<double>(std::max<int64_t>(figures.steps, 1));
  const std::string mode = options.peer ? "peer" : options.limits.tree ? "tree" : "linear";
  nlohmann::ordered_json calibration = nlohmann::ordered_json::array();
  for (const Bucket& b : figures.calibration) {
    const auto count = static_cast<double>(std::max<int64_t>(b.tokens, 1));
    calibration.push_back({{"tokens", b.tokens},
                           {"predicted", rounded(b.predicted / count)},
                           {"accepted", rounded(static_cast<double>(b.accepted) / count)}});
  }
  const nlohmann::ordered_json line = {{"bench", "draft"},
                                       {"references", options.references},
                                       {"past", options.past},
                                       {"past_kind", kPastKinds[static_cast<size_t>(options.past_kind)]},
                                       {"mode", mode},
                                       {"max_draft", options.limits.max_tokens},
                                       {"min_probability", rounded(options.limits.min_probability)},
                                       {"append_mtok_s", rounded(quantile(append, 0.5))},
                                       {"bytes_per_token", rounded(bytes_per_token)},
                                       {"draft_us_p50", rounded(quantile(p50, 0.5))},
                                       {"draft_us_p99", rounded(quantile(p99, 0.5))},
                                       {"acceptance_length", rounded(static_cast<double>(figures.tokens) / steps)},
                                       {"drafted_per_step", rounded(static_cast<double>(figures.drafted) / steps)},
                                       {"steps", figures.steps},
                                       {"predicted_ratio", rounded(predicted_ratio(figures))},
                                       {"calibration", calibration}};
  if (options.json) {
    std::printf("%s\n", line.dump().c_str());
  } else {
    for (const auto& [name, value] : line.items()) std::printf("%-18s %s\n", name.c_str(), value.dump().c_str());
  }
}
