// What the journals have in common: a RocksDB database for records under keys whose numbers are in order.
#pragma once
#include <rocksdb/db.h>

#include <memory>
#include <string>

#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

/// `dir` is the journal's folder, for the message.
Error journal_error(const rocksdb::Status& status, const std::string& dir);
/// Opens the database in `path`, or makes it.
Result<std::unique_ptr<rocksdb::DB>> open_journal_db(const std::string& path, const std::string& dir);

template <class Number>
void append_big_endian(std::string& bytes, Number number) {
  for (int shift = 8 * sizeof number - 8; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
}
/// 'r', 7 -> "r\0\0\0\7"
template <class... Numbers>
std::string journal_key(char kind, Numbers... numbers) {
  std::string key(1, kind);
  (append_big_endian(key, numbers), ...);
  return key;
}

/// Appends a part to what a request has so far, whose parts come by first_index. What does not fit after a gap is left out. A request
/// that goes on in another process computes the last token before it again.
void append_part(const CommittedTokens& part, CommittedTokens& all);

}  // namespace seer
