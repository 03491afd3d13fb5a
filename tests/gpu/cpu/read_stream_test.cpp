#include "gpu/cpu/read_stream.h"

#include <doctest/doctest.h>

namespace seer {
namespace {

TEST_CASE("read stream: a pass reads every byte once, on any number of threads") {
  constexpr size_t kBytes = 5 * ReadStream::kPieceBytes;
  for (int32_t threads = 1; threads <= 3; ++threads) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    ReadStream stream(pool, kBytes);
    for (uint64_t pass = 1; pass <= 2; ++pass) {
      CHECK(stream.measure_gb_s() > 0);
      CHECK(stream.checksum() == pass * (kBytes / 8) * 0x0101010101010101u);  // every byte is 1; words of 8 are added
    }
  }
}

}  // namespace
}  // namespace seer
