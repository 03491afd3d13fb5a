// SuffixIndex: how often every string of up to kDepth tokens occurs in the streams of a StreamLog, where, and what follows it.
// It is a suffix automaton that grows token by token at the end of any stream. Counts are exact and do not depend on the order
// in which the streams grew. Used by DraftTree. Single owner, not thread-safe.
//
// A state represents all strings that end at the same places. The longest has length(state) tokens; the others are its
// suffixes, down to the one just longer than the longest string of link(state), which is the state of the next shorter suffix.
// following(state, token) is the state of those strings with the token appended. The state of a place is that of the kDepth
// tokens that end there. Longer strings are not told apart, which bounds the depth of the automaton and the work per token.
//
// Most states occur once and have kDepth tokens. Of such a leaf only the link is stored: its place names it, and the token that
// follows it is the next one in the log. When its string occurs again, it becomes a node. Memory per token of dissimilar text:
// 4 B in the log, 4 B in states_, about 0.3 nodes of 24 B and 0.8 edges of 8 B.
//
// Invariants:
//  (1) states_[place] of an indexed place is its node if marked so, or else the link of the leaf there;
//  (2) the target of an edge is a node, or a place whose state is a leaf;
//  (3) a node's link is a node with a shorter string; the root, the empty string, is node 0.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "actors/policy/draft/grow_array.h"
#include "actors/policy/draft/stream_log.h"

namespace seer {

/// A node by its index, or a leaf by its place.
class SuffixState {
 public:
  static constexpr SuffixState node(uint32_t index) { return SuffixState(index); }
  static constexpr SuffixState leaf(TokenPlace place) { return SuffixState(place | kLeaf); }
  static constexpr SuffixState none() { return SuffixState(0xffffffffu); }
  SuffixState() = default;
  constexpr bool is_leaf() const { return (bits_ & kLeaf) != 0; }  // REQUIRES: not none
  constexpr uint32_t index() const { return bits_; }               // REQUIRES: a node
  constexpr TokenPlace place() const { return bits_ & ~kLeaf; }    // REQUIRES: a leaf
  constexpr bool operator==(const SuffixState&) const = default;

 private:
  static constexpr uint32_t kLeaf = 0x80000000u;
  explicit constexpr SuffixState(uint32_t bits) : bits_(bits) {}
  uint32_t bits_;
};

struct SuffixMatch {
  uint32_t length = 0;               // tokens, up to SuffixIndex::kDepth
  TokenPlace occurrence = kNoPlace;  // place of its last token in the occurrence before this one
};

class SuffixIndex {
 public:
  static constexpr uint32_t kDepth = 32;
  static constexpr TokenPlace kPlacesMax = 1u << 26;  // so that counts, nodes (at most 2 per place) and states fit

  static constexpr SuffixState kRoot = SuffixState::node(0);

  SuffixIndex();

  /// Indexes the token at `place`. `last` is the state of the place before it or, for the first token of a stream, the
  /// root or any state that other streams branch off from (see branch()).
  /// Returns the longest string that ends at `place` and had occurred before.
  /// REQUIRES: place is known in the log and new here; places of a stream come in order.
  SuffixMatch append(const StreamLog& log, TokenPlace place, SuffixState last, bool first_of_stream);

  /// The state of the last place of a stream, as a node, so that other streams can continue from it.
  SuffixState branch(const StreamLog& log, TokenPlace last);

  /// REQUIRES: the place is indexed.
  SuffixState state(TokenPlace place) const {
    return states_[place] & kIsNode ? SuffixState::node(states_[place] & ~kIsNode) : SuffixState::leaf(place);
  }
  bool indexed(TokenPlace place) const { return place < states_.size() && states_[place] != kNotIndexed; }

  uint32_t length(SuffixState s) const { return s.is_leaf() ? kDepth : nodes_[s.index()].length; }
  uint32_t count(SuffixState s) const { return s.is_leaf() ? 1 : nodes_[s.index()].count; }
  /// REQUIRES: not the root.
  SuffixState link(SuffixState s) const {
    return SuffixState::node(s.is_leaf() ? states_[s.place()] : nodes_[s.index()].link);
  }
  /// Where the strings of the state occur: the place of their last token. Of several, the last to be indexed.
  TokenPlace occurrence(SuffixState s) const { return s.is_leaf() ? s.place() : nodes_[s.index()].place; }
  /// none() if the token never followed.
  SuffixState following(const StreamLog& log, SuffixState s, int32_t token) const;

  /// Calls visit(token, state, count) for each token that followed the state, with how often it did. If more than kFewTokens
  /// followed, it visits only the kTopTokens most frequent, with none() as state; following() finds theirs. Returns how often any
  /// token followed; this may be too large by the number of streams that end here. REQUIRES: not the root.
  template <class Visit>
  uint32_t followers(const StreamLog& log, SuffixState s, Visit visit) const;
  bool has_followers(const StreamLog& log, SuffixState s) const {
    return s.is_leaf() ? indexed(log.next(s.place())) : nodes_[s.index()].token >= 0;
  }

  static constexpr uint32_t kFewTokens = 9;
  static constexpr uint32_t kTopTokens = 4;

  size_t bytes() const;
  /// Gives up the index, which must not be used again. All large memory goes to the bin.
  void give_up(PageBin& bin);

 private:
  static constexpr uint32_t kIsNode = 0x80000000u;      // in states_: the rest is the index of a node
  static constexpr uint32_t kNotIndexed = 0xffffffffu;  // in states_
  static constexpr uint32_t kNoNode = 0x3ffffffu;       // link of the root

  /// The first edge is in the node, the others are in a block of edges_. Up to 8 edges are a row. More are an open hash table
  /// after a head, whose token is the number of edges and whose target is the index of their TopTokens.
  struct Node {
    uint32_t link : 26, length : 6;
    uint32_t count : 27, block_class : 5;  // 0: no block
    TokenPlace place;
    int32_t token;  // of the first edge; -1: none
    SuffixState target;
    uint32_t block;
  };
  static_assert(sizeof(Node) == 24);
  struct Edge {
    int32_t token;  // -1: free
    SuffixState target;
  };
  struct TopTokens {  // most frequent first; equally frequent ones by token
    std::array<int32_t, kTopTokens> tokens;
    std::array<uint32_t, kTopTokens> counts;
  };

  // Block classes: 1 to 4 are rows of 1, 2, 4, 8 edges; class c from 5 on is a head and a table of 2^(c - 1) edges.
  static constexpr uint32_t kRowClassMax = 4;
  static constexpr uint32_t block_edges(uint32_t c) { return (1u << (c - 1)) + (c > kRowClassMax); }
  static uint32_t slot(int32_t token, uint32_t c) { return (static_cast<uint32_t>(token) * 2654435769u) >> (33 - c); }

  bool is_hub(const Node& node) const { return node.block_class > kRowClassMax; }
  TopTokens& top_of(const Node& hub) { return top_[edges_[hub.block].target.index()]; }
  const TopTokens& top_of(const Node& hub) const { return top_[edges_[hub.block].target.index()]; }

  uint32_t add_node(uint32_t length, TokenPlace place);
  const SuffixState* find(uint32_t node, int32_t token) const;
  SuffixState* find(uint32_t node, int32_t token) {
    return const_cast<SuffixState*>(std::as_const(*this).find(node, token));
  }
  void add_edge(uint32_t node, int32_t token, SuffixState target);
  void grow_block(Node& node);
  void put_in_table(Edge* head, uint32_t block_class, Edge edge);
  uint32_t take_block(uint32_t block_class);
  void free_block(uint32_t block, uint32_t block_class);

  uint32_t with_length(const StreamLog& log, uint32_t from, int32_t token, SuffixState target, uint32_t length,
                       TokenPlace place);
  uint32_t split_node(uint32_t node, uint32_t length);
  uint32_t split_leaf(const StreamLog& log, TokenPlace leaf, uint32_t length, TokenPlace newest);
  void redirect(uint32_t from, int32_t token, SuffixState old_target, SuffixState target);
  SuffixMatch count_occurrence(uint32_t node, TokenPlace place);
  void rank_followers(uint32_t node, int32_t token);
  static void rank(TopTokens& top, int32_t token, uint32_t count);

  GrowArray<Node> nodes_;
  GrowArray<Edge> edges_;
  GrowArray<TopTokens> top_;
  GrowArray<uint32_t> states_;            // by place
  std::array<uint32_t, 32> free_blocks_;  // by class: first free block, which names the next in its first target
};

template <class Visit>
uint32_t SuffixIndex::followers(const StreamLog& log, SuffixState s, Visit visit) const {
  if (s.is_leaf()) {
    const TokenPlace next = log.next(s.place());
    if (!indexed(next)) return 0;
    visit(log.token(next), state(next), 1u);
    return 1;
  }
  const Node& node = nodes_[s.index()];
  if (node.token < 0) return 0;
  if (is_hub(node)) {
    const TopTokens& top = top_of(node);
    for (uint32_t i = 0; i < kTopTokens; ++i) visit(top.tokens[i], SuffixState::none(), top.counts[i]);
    return node.count;
  }
  uint32_t sum = count(node.target);
  visit(node.token, node.target, sum);
  if (node.block_class == 0) return sum;
  const Edge* edges = &edges_[node.block];
  for (uint32_t i = 0; i < block_edges(node.block_class) && edges[i].token >= 0; ++i) {
    const uint32_t n = count(edges[i].target);
    sum += n;
    visit(edges[i].token, edges[i].target, n);
  }
  return sum;
}

}  // namespace seer
