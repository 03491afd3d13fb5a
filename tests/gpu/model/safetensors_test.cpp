#include "gpu/model/safetensors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "gpu/tiny_model.h"

namespace seer {
namespace {

std::string with_header(const std::string& header, size_t data_bytes, uint64_t claimed = 0) {
  const uint64_t size = claimed ? claimed : header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, '\1');
}

Error open_error(const std::string& bytes) {
  TestFolder folder;
  write_file(folder.path() / "model.safetensors", bytes);
  const auto file = SafetensorsFile::open(folder.path() / "model.safetensors");
  REQUIRE(!file.ok());
  return file.error();
}

TEST_CASE("safetensors: tensors are found with type, shape and bytes") {
  TestFolder folder;
  write_file(folder.path() / "model.safetensors",
             safetensors_bytes({{"a.weight", {2, 3}}, {"b.bias", {4}}}, "BF16", 1));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.ok());
  const int64_t shape[] = {2, 3}, other[] = {3, 2};
  const auto a = checkpoint->get("a.weight", shape);
  REQUIRE(a.ok());
  CHECK((*a)->type == TensorType::kBf16);
  CHECK((*a)->bytes == 12);
  CHECK(checkpoint->get("a.weight", other)
            .error()
            .detail.ends_with("tensor a.weight should have shape [3, 2], found [2, 3]"));
  CHECK(checkpoint->get("c", shape).error().code == Code::kNotFound);
  CHECK(checkpoint->find("b.bias") != nullptr);
}

TEST_CASE("safetensors: a bad file is one sentence, whatever is wrong with it") {
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  CHECK(open_error("abc").code == Code::kCorrupt);
  CHECK(open_error(with_header("{}", 0, 1u << 20)).detail.find("the header should have 1048576 bytes") !=
        std::string::npos);
  CHECK(open_error(with_header("{}", 0, ~uint64_t{0})).code == Code::kCorrupt);
  CHECK(open_error(with_header("[1]", 8)).detail.ends_with("the header is not a JSON object"));
  CHECK(open_error(with_header("{\"t\":3}", 8)).detail.ends_with("tensor t is not an object"));
  CHECK(open_error(with_header(entry("\"F32\"", "[4]", "[0,16]"), 8))
            .detail.ends_with("tensor t ends at data byte 16, the file has 8: it is truncated"));
  CHECK(open_error(with_header(entry("\"F32\"", "[4]", "[0,12]"), 16))
            .detail.ends_with("tensor t has data_offsets [0, 12], its dtype and shape need 16 bytes"));
  CHECK(open_error(with_header(entry("\"F99\"", "[4]", "[0,16]"), 16))
            .detail.ends_with("tensor t has the unknown dtype F99"));
  for (const std::string& bad :
       {entry("\"F32\"", "[-1]", "[0,16]"), entry("\"F32\"", "[1.5]", "[0,16]"), entry("\"F32\"", "4", "[0,16]"),
        entry("\"F32\"", "[4294967296,4294967296,4]", "[0,16]"), entry("\"F32\"", "[18446744073709551615]", "[0,16]"),
        entry("\"F32\"", "[4]", "[16,0]"), entry("\"F32\"", "[4]", "[-16,0]"), entry("\"F32\"", "[4]", "[0]"),
        entry("\"F32\"", "[4]", "[18446744073709551600,18446744073709551615]"), entry("7", "[4]", "[0,16]")}) {
    CAPTURE(bad);
    CHECK(open_error(with_header(bad, 16)).code == Code::kCorrupt);
  }
}

TEST_CASE("safetensors: every byte belongs to one tensor, and every name is there once") {
  const auto file = [](const std::string& entries, size_t data_bytes) {
    return open_error(with_header("{" + entries + "}", data_bytes)).detail;
  };
  const auto entry = [](const std::string& name, int begin, int end) {
    return cat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", (end - begin) / 4, "],\"data_offsets\":[", begin, ",",
               end, "]}");
  };
  CHECK(file(entry("a", 0, 16) + "," + entry("b", 8, 24), 24)
            .ends_with(": tensor b begins at data byte 8, inside tensor a, which ends at 16"));
  CHECK(file(entry("a", 0, 16) + "," + entry("b", 0, 16), 16).find("inside tensor a") != std::string::npos);
  CHECK(file(entry("a", 0, 8) + "," + entry("b", 16, 24), 24)
            .ends_with(": the data bytes from 8 to 16 belong to no tensor"));
  CHECK(file(entry("a", 8, 16), 16).ends_with(": the data bytes from 0 to 8 belong to no tensor"));
  CHECK(file(entry("a", 0, 16), 20).ends_with(": 4 bytes follow the end of the last tensor"));
  CHECK(file(entry("a", 0, 16) + "," + entry("a", 0, 16), 16).ends_with("(header): the key a is there twice"));
  CHECK(file(R"("a":{"dtype":"F32","shape":[2],"shape":[4],"data_offsets":[0,16]})", 16)
            .ends_with("(header): the key a.shape is there twice"));
  for (const std::string& long_text :
       {R"({"t":{"dtype":")" + std::string(5000, 'F') + R"(","shape":[4],"data_offsets":[0,16]}})",
        "{\"" + std::string(5000, 't') + "\":3}"})
    CHECK(open_error(with_header(long_text, 16)).detail.size() < 300);
  CHECK(open_error("GGUF" + std::string(100, '\3')).detail.ends_with("is a GGUF file, not a safetensors file"));
  CHECK(open_error("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n")
            .detail.find("is a Git LFS pointer") != std::string::npos);
}

std::vector<std::byte> bytes_of(const StoredTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  REQUIRE(tensor.read(0, bytes).ok());
  return bytes;
}

TEST_CASE("safetensors: a file that is cut, or removed, while it is read") {
  TestFolder folder;
  const auto path = folder.path() / "model.safetensors";
  write_file(path, safetensors_bytes({{"a.weight", {2, 3}}, {"b.bias", {4}}}, "BF16", 1));
  const auto checkpoint = Checkpoint::open(folder.path());
  const StoredTensor &a = *checkpoint->find("a.weight"), &b = *checkpoint->find("b.bias");
  const std::vector<std::byte> first = bytes_of(a);
  std::vector<std::byte> part(4);
  REQUIRE(a.read(8, part).ok());
  CHECK(std::ranges::equal(part, std::span(first).subspan(8)));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 2);
  part.resize(b.bytes);
  const Status read = b.read(0, part);
  REQUIRE(!read.ok());
  CHECK(read.error().code == Code::kIo);
  CHECK(read.error().detail.starts_with(path.string() + " ends at byte "));
  CHECK(bytes_of(a) == first);
  std::filesystem::remove(path);
  CHECK(bytes_of(a) == first);
}

TEST_CASE("safetensors: random damage never crashes") {
  const std::string good = safetensors_bytes({{"a.weight", {8, 8}}, {"b.weight", {3, 5}}}, "F32", 1);
  const uint64_t seed = 99;
  CAPTURE(seed);
  std::mt19937_64 rng(seed);
  TestFolder folder;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    for (int n = 1 + static_cast<int>(rng() % 4); n > 0; --n) bytes[rng() % 200] = static_cast<char>(rng());
    if (i % 3 == 0) bytes.resize(rng() % bytes.size());
    write_file(folder.path() / "model.safetensors", bytes);
    const auto checkpoint = Checkpoint::open(folder.path());
    if (!checkpoint.ok()) continue;
    const int64_t shape[] = {8, 8};
    if (const auto a = checkpoint->get("a.weight", shape); a.ok()) CHECK((*a)->bytes >= 128);
  }
}

std::shared_ptr<WeightMemory> memory_of(const std::string& bytes) {
  const auto memory = *WeightMemory::create();
  for (size_t begin = 0; begin < bytes.size(); begin += 1000) REQUIRE(memory->append(std::string_view(bytes).substr(begin, 1000)).ok());
  return memory;
}

TEST_CASE("safetensors: memory holds one file or several, and is read like a folder with their tensors") {
  const std::vector<TinyTensor> tensors = {{"a.weight", {20, 30}}, {"b.bias", {4}}, {"c.weight", {7, 9}}};
  TestFolder folder;
  write_file(folder.path() / "model.safetensors", safetensors_bytes(tensors, "BF16", 1));
  const auto expected = Checkpoint::open(folder.path());
  std::string several;
  for (const size_t i : {2, 0, 1}) several += safetensors_bytes({tensors[i]}, "BF16", 1);
  for (const std::string& bytes : {safetensors_bytes(tensors, "BF16", 1), several}) {
    auto memory = memory_of(bytes);
    const auto found = Checkpoint::open(*memory, "upload");
    memory.reset();  // the tensors need it no more
    REQUIRE(found.ok());
    REQUIRE(found->tensors().size() == 3);
    for (const auto& [name, view] : expected->tensors()) {
      CHECK(found->find(name)->shape == view->shape);
      CHECK(bytes_of(*found->find(name)) == bytes_of(*view));
    }
  }
}

TEST_CASE("safetensors: in memory with several files, each is checked, and the error says which") {
  const auto error_of = [](const std::string& bytes) {
    const auto found = Checkpoint::open(*memory_of(bytes), "upload");
    return found.ok() ? "" : found.error().detail;
  };
  const std::string first = safetensors_bytes({{"a", {2}}}, "BF16", 1), second = safetensors_bytes({{"b", {4}}}, "BF16", 1);
  CHECK(error_of(first + second) == "");
  CHECK(error_of("") == "upload (file 1) has 0 bytes: too short for a safetensors file");
  CHECK(error_of(first + "abc") == "upload (file 2) has 3 bytes: too short for a safetensors file");
  CHECK(error_of(first + second + first) == "upload (file 3) has the tensor a, which came before");
  CHECK(error_of(first + with_header("{}", 0)) == "upload (file 2) has no tensors");
  CHECK(error_of((first + second).substr(0, first.size() + second.size() - 1)).ends_with("it is truncated"));
  // All headers together are bounded. Spaces after a header are JSON.
  std::string large;
  for (const char name : {'a', 'b', 'c'})
    large += with_header(cat("{\"", name, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", std::string(40'000'000, ' ')), 1);
  CHECK(error_of(large).ends_with("expected at most 100000000"));
}

TEST_CASE("safetensors: random damage to memory with several files never crashes") {
  const uint64_t seed = 5;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const std::string whole = safetensors_bytes({{"a", {2, 3}}}, "F32", 1) + safetensors_bytes({{"b", {4}}, {"c", {5}}}, "F32", 1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole.substr(0, i % 3 == 0 ? random() % whole.size() : whole.size());
    for (size_t n = random() % 4; n > 0 && !bytes.empty(); --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (const auto found = Checkpoint::open(*memory_of(bytes), "upload"); found.ok())
      for (const auto& [name, view] : found->tensors()) CHECK(bytes_of(*view).size() <= bytes.size());
  }
}

TEST_CASE("safetensors: shards are read through their index, and a bad index is an error") {
  TestFolder folder;
  write_file(folder.path() / "s1.safetensors", safetensors_bytes({{"a.weight", {2, 2}}}, "F32", 1));
  write_file(folder.path() / "s2.safetensors", safetensors_bytes({{"b.weight", {2, 2}}}, "F32", 1));
  const auto index = [&](const std::string& map) {
    write_file(folder.path() / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return Checkpoint::open(folder.path());
  };
  const auto good = index(R"({"a.weight": "s1.safetensors", "b.weight": "s2.safetensors"})");
  REQUIRE(good.ok());
  CHECK(good->find("b.weight") != nullptr);
  CHECK(index("{}").error().detail.ends_with("index.json: weight_map is empty"));
  CHECK(index(R"({"a.weight": "s1.safetensors", "a.weight": "s1.safetensors"})")
            .error()
            .detail.ends_with("index.json: the key weight_map.a.weight is there twice"));
  write_file(folder.path() / "s3.safetensors",
             safetensors_bytes({{"a.weight", {2, 2}}, {"b.weight", {2, 2}}}, "F32", 1));
  CHECK(index(R"({"a.weight": "s3.safetensors"})")
            .error()
            .detail.find("s3.safetensors has the tensor b.weight, which ") != std::string::npos);
  CHECK(index(R"({"a.weight": "s1.safetensors", "b.weight": "s3.safetensors"})")
            .error()
            .detail.ends_with(" says is in another file"));
  std::filesystem::remove(folder.path() / "s3.safetensors");
  CHECK(index(R"({"a.weight": "s2.safetensors"})").error().code == Code::kCorrupt);
  CHECK(index(R"({"a.weight": "s3.safetensors"})").error().code == Code::kNotFound);
  CHECK(index(R"({"a.weight": "../s1.safetensors"})").error().code == Code::kInvalidArgument);
  const Error long_name = index("{\"a.weight\": \"" + std::string(5000, 's') + "\"}").error();
  CHECK(long_name.code == Code::kInvalidArgument);
  CHECK(long_name.detail.size() < 300);
  CHECK(index(R"({"a.weight": ".."})").error().code == Code::kIo);
  CHECK(index(R"({"a.weight": 3})").error().code == Code::kInvalidArgument);
  CHECK(index("[]").error().code == Code::kInvalidArgument);
  // Beside a single file, the index must be of that file.
  write_file(folder.path() / "model.safetensors", safetensors_bytes({{"a.weight", {2, 2}}}, "F32", 1));
  CHECK(index(R"({"a.weight": "model.safetensors"})").ok());
  CHECK(index("{}").error().detail.ends_with("weight_map is empty"));
  CHECK(
      index(R"({"a.weight": "s1.safetensors"})")
          .error()
          .detail.ends_with("weight_map says that a.weight is in s1.safetensors, but the folder has model.safetensors "
                            "too: remove one of the two"));
  TestFolder empty;
  CHECK(Checkpoint::open(empty.path()).error().code == Code::kNotFound);
}

}  // namespace
}  // namespace seer
