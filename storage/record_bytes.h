// Structs with SEER_FIELDS as bytes on disk, and back: fields in order, integers and floats as in memory (little endian),
// strings and vectors after their length. Bytes that are not exactly one such struct are refused. Pure.
#pragma once
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "protocols/fields.h"
#include "protocols/result.h"

namespace seer {

static_assert(std::endian::native == std::endian::little);

template <class T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class RecordWriter {
 public:
  std::string bytes;

  template <PlainValue T>
  void put(const T& value) { append(&value, sizeof value); }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    bytes += text;
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(uint64_t{values.size()});
    if constexpr (PlainValue<T>)
      append(values.data(), values.size() * sizeof(T));
    else
      for (const T& value : values) put(value);
  }
  template <HasFields T>
  void put(const T& value) {
    value.visit_fields([this](const auto&... fields) { (put(fields), ...); });
  }

 private:
  void append(const void* from, size_t count) { bytes.append(static_cast<const char*>(from), count); }
};

class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : left_(bytes) {}
  /// True if all bytes were read and none was missing.
  bool is_done() const { return good_ && left_.empty(); }

  template <PlainValue T>
  void get(T& value) { take(&value, sizeof value); }
  void get(bool& value) {
    uint8_t byte = 0;
    get(byte);
    if (byte > 1) good_ = false;  // a bool of another byte is neither true nor false
    value = byte == 1;
  }
  void get(std::string& text) {
    text.resize(get_count(1));
    take(text.data(), text.size());
  }
  template <class T>
  void get(std::vector<T>& values) {
    if constexpr (PlainValue<T>) {
      values.resize(get_count(sizeof(T)));
      take(values.data(), values.size() * sizeof(T));
    } else {
      values.resize(get_count(1));
      for (T& value : values) get(value);
    }
  }
  template <HasFields T>
  void get(T& value) {
    value.visit_fields([this](auto&... fields) { (get(fields), ...); });
  }

 private:
  /// Reads a count, which is never more than the bytes left can hold.
  size_t get_count(size_t bytes_each) {
    uint64_t count = 0;
    get(count);
    if (count <= left_.size() / bytes_each) return count;
    good_ = false;
    return 0;
  }
  void take(void* to, size_t count) {
    if (count > left_.size()) {
      good_ = false;
      left_ = {};
      return;
    }
    if (count == 0) return;  // `to` may be null then, which memcpy does not allow
    std::memcpy(to, left_.data(), count);
    left_.remove_prefix(count);
  }

  std::string_view left_;
  bool good_ = true;
};

/// Appends a number of a key: keys then sort as their numbers do.
template <std::unsigned_integral Number>
void append_big_endian(std::string& bytes, Number number) {
  for (size_t i = sizeof number; i-- > 0;) bytes += static_cast<char>(number >> (8 * i));
}

template <HasFields T>
std::string record_bytes(const T& value) {
  RecordWriter writer;
  writer.put(value);
  return std::move(writer.bytes);
}

/// kCorrupt: not the bytes of a T.
template <HasFields T>
Result<T> read_record(std::string_view bytes) {
  T value;
  RecordReader reader(bytes);
  reader.get(value);
  if (reader.is_done()) return value;
  return fail(Code::kCorrupt, "a record of ", bytes.size(), " bytes is not a ", T::kTypeName);
}

}  // namespace seer
