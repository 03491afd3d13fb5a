// Vectors of an independent implementation, under tests/gpu/data/text: see the README there for how they were made.
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace seer {

inline std::string text_data(const std::string& file) { return std::string(SEER_TEST_DATA) + "/text/" + file; }

inline nlohmann::json read_vectors(const std::string& file) {
  std::ifstream in(text_data(file));
  return nlohmann::json::parse(in);
}

}  // namespace seer
