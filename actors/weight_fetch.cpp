#include "actors/weight_fetch.h"

#include <algorithm>
#include <span>

#include "protocols/crc32c.h"

namespace seer {

Result<WeightFetch> WeightFetch::begin(const NewWeights& what) {
  SEER_ASSIGN_OR_RETURN(std::shared_ptr<WeightMemory> memory, WeightMemory::create());
  return WeightFetch(std::move(memory), what);
}

std::optional<uint64_t> WeightFetch::next() {
  if (asked_bytes_ == bytes_ || asked_bytes_ >= memory_->bytes() + kWindowParts * kWeightPartBytes) return std::nullopt;
  const uint64_t offset = asked_bytes_;
  asked_bytes_ = std::min(bytes_, offset + kWeightPartBytes);
  return offset;
}

Status WeightFetch::take(const WeightPart& part) {
  const bool is_asked = part.offset % kWeightPartBytes == 0 && part.offset >= memory_->bytes() && part.offset < asked_bytes_;
  if (!is_asked || early_.contains(part.offset)) return {};
  const uint64_t expected = std::min(kWeightPartBytes, bytes_ - part.offset);
  if (part.bytes.size() != expected)
    return fail(Code::kCorrupt, part.bytes.size(), " bytes of new weights came for byte ", part.offset, ": expected ", expected);
  if (part.offset > memory_->bytes()) {
    early_.emplace(part.offset, part.bytes);
    return {};
  }
  SEER_RETURN_IF_ERROR(append(part.bytes));
  while (const auto next = early_.extract(memory_->bytes())) SEER_RETURN_IF_ERROR(append(next.mapped()));
  if (is_whole() && crc_ != crc_expected_)
    return fail(Code::kCorrupt, "the new weights arrived damaged: their checksum is ", crc_, ", expected ", crc_expected_);
  return {};
}

Status WeightFetch::append(const std::string& bytes) {
  crc_ = crc32c(std::as_bytes(std::span(bytes)), crc_);
  return memory_->append(bytes);
}

}  // namespace seer
