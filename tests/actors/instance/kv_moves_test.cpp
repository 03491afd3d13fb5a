#include "actors/instance/kv_moves.h"

#include <doctest/doctest.h>

#include "actors/instance/instance_bench.h"

using namespace seer;

namespace {

/// The pool's answer: it has the first `blocks` of the blocks asked for.
KvOpened opened(const KvOpening& asked, uint32_t blocks) {
  KvOpened answer{.op = asked.op, .lease = blocks > 0 ? 77u : 0u};
  for (uint32_t i = 0; i < blocks; ++i) answer.blocks.push_back({.slot = i, .crc32c = 10 + i});
  return answer;
}
KvReserved granted(const KvReservation& asked, GrantState state) {
  KvReserved answer{.op = asked.op};
  for (uint32_t i = 0; i < asked.blocks.size(); ++i) answer.grants.push_back({.state = state, .slot = i, .token = 100 + i});
  return answer;
}
/// Computes all known tokens of the sequence except the last, without an engine.
void compute(InstanceBench& b, Sequence& s) {
  const int64_t tokens = s.log.size() - 1;
  REQUIRE(b.devices.allocate(blocks_needed(tokens, static_cast<int32_t>(s.table.size()), b.info.block_tokens), s.table).ok());
  s.kv_tokens = tokens;
  b.kv.name_filled_blocks(s);
}

}  // namespace

TEST_CASE("kv moves: without a pool a sequence runs at once; with one, it asks for blocks that the device lacks") {
  InstanceBench b;
  Sequence& first = b.add(1, 11, 8, false);
  CHECK(b.kv.find(first));
  CHECK(b.told.empty());
  compute(b, first);
  Sequence& second = b.add(2, 15, 8);
  CHECK(!b.kv.find(second));
  CHECK(second.phase == ChunkPhase::kOpening);
  CHECK(second.kv_tokens == 8);             // the prompt's two blocks, shared with the first
  CHECK(second.table == std::vector<DeviceBlockId>(first.table.begin(), first.table.begin() + 2));
  REQUIRE(b.told_of<KvOpening>().size() == 1);
  const KvOpening ask = b.told_of<KvOpening>()[0];
  CHECK(ask.first_index == 2);
  CHECK(ask.blocks.size() == 2);            // one whole, one of 2 tokens; the last token is fed again
  CHECK(b.kv.opened(opened(ask, 0), 0) == &second);
}

TEST_CASE("kv moves: found blocks are imported, and the lease is closed") {
  InstanceBench b;
  Sequence& s = b.add(1, 11, 8);
  b.kv.find(s);
  CHECK(b.kv.opened(opened(b.told_of<KvOpening>()[0], 3), 0) == nullptr);
  CHECK(s.phase == ChunkPhase::kImporting);
  CopyResult copied = b.copy_result();
  SUBCASE("as they were") {
    CHECK(b.kv.imported(copied) == &s);
    CHECK(s.kv_tokens == 10);
    CHECK(s.chain.size() == 2);  // the last one is partial
    CHECK(b.kv.figures().imported_blocks == 3);
    CHECK(b.told_of<KvClose>().at(0).corrupt.empty());
  }
  SUBCASE("up to the first that was damaged") {
    copied.crc32c[1] ^= 1;
    CHECK(b.kv.imported(copied) == &s);
    CHECK(s.kv_tokens == 4);
    CHECK(s.table.size() == 1);
    CHECK(b.devices.counts().in_use == 1);
    CHECK(b.told_of<KvClose>().at(0).corrupt.size() == 1);
    CHECK(b.kv.figures().corrupt_blocks == 1);
  }
  SUBCASE("but the chunk is gone") {
    b.devices.release(s.table);
    b.sequences.remove(ChunkId{1});
    CHECK(b.kv.imported(copied) == nullptr);
  }
  CHECK(b.told_of<KvClose>().at(0).lease == 77);
  CHECK(b.kv.open_count() == 0);
}

TEST_CASE("kv moves: a chunk waits while there is no room for its blocks, and asks again when there is") {
  InstanceBench b(4);
  std::vector<DeviceBlockId> taken;
  REQUIRE(b.devices.allocate(2, taken).ok());
  Sequence& s = b.add(1, 11, 8);
  b.kv.find(s);
  CHECK(b.kv.opened(opened(b.told_of<KvOpening>()[0], 3), 0) == nullptr);
  CHECK(b.told_of<KvClose>().size() == 1);  // no lease is held while it waits
  REQUIRE(b.kv.arrival_count() == 1);
  CHECK(b.kv.first_arrival_blocks() == 3);
  CHECK(b.kv.admit(0).empty());
  CHECK(b.told_of<KvOpening>().size() == 1);
  b.devices.release(taken);
  CHECK(b.kv.admit(2).empty());             // two that run keep a block each
  CHECK(b.told_of<KvOpening>().size() == 1);
  CHECK(b.kv.admit(1).empty());
  REQUIRE(b.told_of<KvOpening>().size() == 2);
  CHECK(b.kv.admit(1).empty());             // it asked already
  b.kv.opened(opened(b.told_of<KvOpening>()[1], 3), 1);
  CHECK(s.phase == ChunkPhase::kImporting);
  CHECK(!b.kv.has_arrivals());
}

TEST_CASE("kv moves: parking ends when each block is sealed or found no room") {
  InstanceBench b;
  Sequence& s = b.add(1, 15, 8);
  compute(b, s);
  CHECK(b.kv.park(s));
  const std::vector<KvReservation> asked = b.told_of<KvReservation>();
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].prompt);
  CHECK(asked[0].blocks.size() == 2);
  CHECK(asked[1].blocks.size() == 2);  // the partial one too
  CHECK(s.parking_ops == 2);
  CHECK(b.kv.reserved(granted(asked[0], GrantState::kHere)) == &s);
  CHECK(b.kv.reserved(granted(asked[1], GrantState::kWrite)) == nullptr);
  const CopyResult copied = b.copy_result();
  CHECK(b.kv.is_parking(copied.id));
  CHECK(b.kv.exported(copied) == &s);
  CHECK(b.told_of<KvSeal>().at(0).blocks.size() == 2);
  CHECK(b.kv.figures().exported_blocks == 2);
  CHECK(b.kv.open_count() == 0);
}

TEST_CASE("kv moves: while parking, blocks that found no room yet are asked for again") {
  InstanceBench b;
  Sequence& s = b.add(1, 15, 8);
  compute(b, s);
  b.kv.park(s);
  KvReserved answer = granted(b.told_of<KvReservation>()[1], GrantState::kRefused);
  answer.grants[1].state = GrantState::kLater;
  CHECK(b.kv.reserved(answer) == &s);
  CHECK(s.parking_ops == 3);
  REQUIRE(b.told_of<KvReservation>().size() == 3);
  CHECK(b.told_of<KvReservation>()[2].blocks.size() == 1);
  CHECK(b.told_of<KvReservation>()[2].first_index == b.told_of<KvReservation>()[1].first_index + 1);
}

TEST_CASE("kv moves: grants for a chunk that is gone are aborted, and its leases closed") {
  InstanceBench b;
  Sequence& s = b.add(1, 15, 8);
  compute(b, s);
  b.kv.park(s);
  Sequence& waits = b.add(2, 15, 8);
  b.kv.find(waits);
  for (const ChunkId chunk : {ChunkId{1}, ChunkId{2}}) {
    b.sequences.remove(chunk);
    b.kv.drop(chunk);
  }
  CHECK(b.kv.open_count() == 0);
  CHECK(b.kv.reserved(granted(b.told_of<KvReservation>()[0], GrantState::kWrite)) == nullptr);
  CHECK(b.told_of<KvAbort>().at(0).tokens.size() == 2);
  CHECK(b.kv.opened(opened(b.told_of<KvOpening>()[0], 1), 0) == nullptr);
  CHECK(b.told_of<KvClose>().at(0).lease == 77);
}

TEST_CASE("kv moves: full blocks are offered a few at a time, the prompt's as soon as they are all there") {
  InstanceBench b;
  Sequence& s = b.add(1, 10, 8);
  compute(b, s);
  b.kv.offer_filled_blocks(s);
  CHECK(b.told_of<KvReservation>().size() == 1);
  CHECK(s.offered_blocks == 2);
  s.log.append(std::vector<int32_t>(4, 50));
  compute(b, s);
  b.kv.offer_filled_blocks(s);
  CHECK(b.told_of<KvReservation>().size() == 1);  // one block more
  s.log.append(std::vector<int32_t>(4, 50));
  compute(b, s);
  b.kv.offer_filled_blocks(s);
  CHECK(s.offered_blocks == 4);
}
