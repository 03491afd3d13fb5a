#include "actors/policy/draft/suffix_index.h"

#include <algorithm>
#include <utility>

namespace seer {

SuffixIndex::SuffixIndex() {
  free_blocks_.fill(0xffffffffu);
  add_node(0, 0);
  nodes_[0].link = kNoNode;
}

SuffixMatch SuffixIndex::append(const StreamLog& log, TokenPlace place, SuffixState last, bool first_of_stream) {
  if (place >= states_.size()) [[unlikely]] {
    states_.add(log.place_count() - states_.size(), kNotIndexed);
    SEER_CHECK(states_.size() <= kPlacesMax, states_.size());
  }
  const int32_t token = log.token(place);
  const uint32_t length_new = std::min(kDepth, length(last) + 1);

  // Did the new string, of length_new tokens, occur before? Then an edge leads to it from `last`, or from the link of
  // `last` if that has all but the first of its tokens.
  const uint32_t last_node = last.is_leaf() ? link(last).index() : last.index();
  uint32_t from = last_node;
  const SuffixState* found = nullptr;
  bool edge_missing = false;
  if (!last.is_leaf()) found = find(from, token);
  if (found == nullptr && length(last) == kDepth) {
    const uint32_t shorter = last.is_leaf() ? from : nodes_[from].link;
    if (nodes_[shorter].length == kDepth - 1 && (found = find(shorter, token)) != nullptr) {
      edge_missing = !last.is_leaf();
      from = shorter;
    }
  }
  if (found != nullptr) {
    const uint32_t node = with_length(log, from, token, *found, std::min(kDepth, nodes_[from].length + 1u), place);
    states_[place] = kIsNode | node;
    if (edge_missing) add_edge(last.index(), token, SuffixState::node(node));
    const SuffixMatch match = count_occurrence(node, place);
    rank_followers(last_node, token);
    return match;
  }

  // The string is new. It becomes a leaf if it can be one, and gets an edge from each suffix of `last` that the token did not
  // follow yet.
  SuffixState added = SuffixState::leaf(place);
  if (length_new == kDepth && !first_of_stream) {
    states_[place] = 0;
  } else {
    added = SuffixState::node(add_node(length_new, place));
    states_[place] = kIsNode | added.index();
  }
  while (from != kNoNode && (found = find(from, token)) == nullptr) {
    add_edge(from, token, added);
    from = nodes_[from].link;
  }
  const uint32_t up = from == kNoNode ? 0 : with_length(log, from, token, *found, nodes_[from].length + 1u, place);
  if (added.is_leaf()) {
    states_[place] = up;
  } else {
    nodes_[added.index()].link = up;
    nodes_[added.index()].count = 1;
  }
  const SuffixMatch match = count_occurrence(up, place);
  rank_followers(last_node, token);
  return match;
}

SuffixState SuffixIndex::branch(const StreamLog& log, TokenPlace last) {
  const SuffixState s = state(last);
  return s.is_leaf() ? SuffixState::node(split_leaf(log, last, kDepth, kNoPlace)) : s;
}

SuffixState SuffixIndex::following(const StreamLog& log, SuffixState s, int32_t token) const {
  if (s.is_leaf()) {
    const TokenPlace next = log.next(s.place());
    return indexed(next) && log.token(next) == token ? state(next) : SuffixState::none();
  }
  const SuffixState* found = find(s.index(), token);
  return found == nullptr ? SuffixState::none() : *found;
}

size_t SuffixIndex::bytes() const { return nodes_.bytes() + edges_.bytes() + top_.bytes() + states_.bytes(); }

void SuffixIndex::give_up(PageBin& bin) {
  nodes_.give_up(bin);
  edges_.give_up(bin);
  top_.give_up(bin);
  states_.give_up(bin);
}

uint32_t SuffixIndex::add_node(uint32_t length, TokenPlace place) {
  nodes_.push_back({.link = 0,
                    .length = length,
                    .count = 0,
                    .block_class = 0,
                    .place = place,
                    .token = -1,
                    .target = SuffixState::none(),
                    .block = 0});
  return static_cast<uint32_t>(nodes_.size() - 1);
}

/// Returns the node of at most `length` tokens that the edge of `from` must lead to: `target` itself, or a shorter part split off
/// from it. `place`: the one being indexed.
uint32_t SuffixIndex::with_length(const StreamLog& log, uint32_t from, int32_t token, SuffixState target,
                                  uint32_t length, TokenPlace place) {
  if (target.is_leaf()) {
    const uint32_t node = split_leaf(log, target.place(), length, place);
    if (length < kDepth) redirect(from, token, target, SuffixState::node(node));
    return node;
  }
  if (nodes_[target.index()].length == length) return target.index();
  const uint32_t node = split_node(target.index(), length);
  redirect(from, token, target, SuffixState::node(node));
  return node;
}

uint32_t SuffixIndex::split_node(uint32_t node, uint32_t length) {
  Node part = nodes_[node];
  part.length = length;
  if (part.block_class != 0) {
    part.block = take_block(part.block_class);
    const Edge* from = &edges_[nodes_[node].block];
    std::copy(from, from + block_edges(part.block_class), &edges_[part.block]);
    if (is_hub(part)) {
      const TopTokens top = top_of(nodes_[node]);
      edges_[part.block].target = SuffixState::node(static_cast<uint32_t>(top_.size()));
      top_.push_back(top);
    }
  }
  const auto added = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(part);
  nodes_[node].link = added;
  return added;
}

/// Makes a node for the strings of the leaf with up to `length` tokens. If that is all of them, the node replaces the leaf, and
/// the edges to the leaf lead to the node. `newest`: the place being indexed. The token after it is not known, and its state may
/// not be set.
uint32_t SuffixIndex::split_leaf(const StreamLog& log, TokenPlace leaf, uint32_t length, TokenPlace newest) {
  const uint32_t node = add_node(length, leaf);
  nodes_[node].link = states_[leaf];
  nodes_[node].count = 1;
  if (length < kDepth) {
    states_[leaf] = node;
  } else {
    states_[leaf] = kIsNode | node;
    // The place being indexed has the same string as the leaf. It may be the place after the leaf: a run of one token.
    if (newest != kNoPlace) states_[newest] = kIsNode | node;
    const SuffixState before = state(log.previous(leaf));
    redirect((before.is_leaf() ? link(before) : before).index(), log.token(leaf), SuffixState::leaf(leaf),
             SuffixState::node(node));
  }
  const TokenPlace next = log.next(leaf);
  if (indexed(next)) {
    nodes_[node].token = log.token(next);
    nodes_[node].target = state(next);
  }
  return node;
}

void SuffixIndex::redirect(uint32_t from, int32_t token, SuffixState old_target, SuffixState target) {
  for (; from != kNoNode; from = nodes_[from].link) {
    SuffixState* edge = find(from, token);
    if (edge == nullptr || *edge != old_target) break;
    *edge = target;
  }
}

/// Counts the strings of the node and all their suffixes once more. Returns the match as it was before.
SuffixMatch SuffixIndex::count_occurrence(uint32_t node, TokenPlace place) {
  const SuffixMatch match = node == 0 ? SuffixMatch{} : SuffixMatch{nodes_[node].length, nodes_[node].place};
  for (; node != 0; node = nodes_[node].link) {
    ++nodes_[node].count;
    nodes_[node].place = place;
  }
  ++nodes_[0].count;
  return match;
}

/// Notes that `token` followed the node's strings and their suffixes, except the empty one, for which followers() is not called.
void SuffixIndex::rank_followers(uint32_t node, int32_t token) {
  for (; node != 0; node = nodes_[node].link)
    if (is_hub(nodes_[node])) rank(top_of(nodes_[node]), token, count(*find(node, token)));
}

void SuffixIndex::rank(TopTokens& top, int32_t token, uint32_t count) {
  uint32_t i = 0;
  while (i < kTopTokens && top.tokens[i] != token) ++i;
  const auto before = [&](uint32_t j) {
    return count > top.counts[j] || (count == top.counts[j] && token < top.tokens[j]);
  };
  if (i == kTopTokens && !before(--i)) return;
  for (; i > 0 && before(i - 1); --i) {
    top.tokens[i] = top.tokens[i - 1];
    top.counts[i] = top.counts[i - 1];
  }
  top.tokens[i] = token;
  top.counts[i] = count;
}

const SuffixState* SuffixIndex::find(uint32_t index, int32_t token) const {
  const Node& node = nodes_[index];
  if (node.token == token) return &node.target;
  if (node.block_class == 0) return nullptr;
  const Edge* edges = &edges_[node.block];
  if (node.block_class <= kRowClassMax) {
    for (uint32_t i = 0; i < block_edges(node.block_class); ++i)
      if (edges[i].token == token) return &edges[i].target;
    return nullptr;
  }
  const uint32_t mask = (1u << (node.block_class - 1)) - 1;
  for (uint32_t i = slot(token, node.block_class);; i = (i + 1) & mask) {
    const Edge& edge = edges[1 + i];
    if (edge.token == token) return &edge.target;
    if (edge.token < 0) return nullptr;
  }
}

/// REQUIRES: the node has no edge for the token.
void SuffixIndex::add_edge(uint32_t index, int32_t token, SuffixState target) {
  Node& node = nodes_[index];
  if (node.token < 0) {
    node.token = token;
    node.target = target;
    return;
  }
  if (node.block_class == 0) {
    node.block = take_block(1);
    node.block_class = 1;
    edges_[node.block] = {token, target};
    return;
  }
  if (node.block_class <= kRowClassMax) {
    const uint32_t size = block_edges(node.block_class);
    if (edges_[node.block + size - 1].token < 0) {
      Edge* edge = &edges_[node.block];
      while (edge->token >= 0) ++edge;
      *edge = {token, target};
      return;
    }
    grow_block(node);
    if (node.block_class <= kRowClassMax) {
      edges_[node.block + size] = {token, target};
      return;
    }
  } else if (const uint32_t size = 1u << (node.block_class - 1);
             static_cast<uint32_t>(edges_[node.block].token) >= size - size / 4) {
    grow_block(node);
  }
  put_in_table(&edges_[node.block], node.block_class, {token, target});
}

/// Moves the node's edges to a block of the next class, or from a full row of 8 to a table of 32.
void SuffixIndex::grow_block(Node& node) {
  const uint32_t old_class = node.block_class, old_block = node.block;
  node.block_class = old_class == kRowClassMax ? 6 : old_class + 1;
  node.block = take_block(node.block_class);
  const Edge* old = &edges_[old_block];
  Edge* edges = &edges_[node.block];
  if (!is_hub(node)) {
    std::copy(old, old + block_edges(old_class), edges);
  } else {
    edges[0] = {0, old[0].target};
    for (uint32_t i = old_class > kRowClassMax; i < block_edges(old_class); ++i)
      if (old[i].token >= 0) put_in_table(edges, node.block_class, old[i]);
    if (old_class == kRowClassMax) {
      TopTokens top;
      top.tokens.fill(0x7fffffff);
      top.counts.fill(0);
      rank(top, node.token, count(node.target));
      for (uint32_t i = 0; i < block_edges(old_class); ++i) rank(top, old[i].token, count(old[i].target));
      edges[0].target = SuffixState::node(static_cast<uint32_t>(top_.size()));
      top_.push_back(top);
    }
  }
  free_block(old_block, old_class);
}

void SuffixIndex::put_in_table(Edge* head, uint32_t block_class, Edge edge) {
  const uint32_t mask = (1u << (block_class - 1)) - 1;
  uint32_t i = slot(edge.token, block_class);
  while (head[1 + i].token >= 0) i = (i + 1) & mask;
  head[1 + i] = edge;
  ++head->token;
}

uint32_t SuffixIndex::take_block(uint32_t block_class) {
  const uint32_t size = block_edges(block_class);
  const uint32_t block = free_blocks_[block_class];
  constexpr Edge kFree = {-1, SuffixState::none()};
  if (block == 0xffffffffu) return static_cast<uint32_t>(edges_.add(size, kFree));
  free_blocks_[block_class] = edges_[block].target.index();
  std::fill_n(&edges_[block], size, kFree);
  return block;
}

void SuffixIndex::free_block(uint32_t block, uint32_t block_class) {
  edges_[block].target = SuffixState::node(free_blocks_[block_class]);
  free_blocks_[block_class] = block;
}

}  // namespace seer
