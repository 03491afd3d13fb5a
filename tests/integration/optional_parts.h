// Which optional parts this build has, for tests that need them.
#pragma once
#include <doctest/doctest.h>

namespace seer {

/// Says so if not: a test that then ends early is seen to be skipped.
inline bool has_rocksdb() {
#ifdef SEER_HAVE_ROCKSDB
  return true;
#else
  MESSAGE("skipped: this build has no RocksDB");
  return false;
#endif
}

/// Likewise.
inline bool has_ucx() {
#ifdef SEER_HAVE_UCX
  return true;
#else
  MESSAGE("skipped: this build has no UCX");
  return false;
#endif
}

}  // namespace seer
