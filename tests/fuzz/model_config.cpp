// config.json of a model's folder, and optionally a zero byte and generation_config.json.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "gpu/model/model_config.h"

using namespace seer;
namespace fs = std::filesystem;

namespace {

/// Removed with the process.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "seer-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  write(folder.path / "config.json", input.substr(0, end));
  if (end != input.npos) write(folder.path / "generation_config.json", input.substr(end + 1));
  const auto config = read_model_config(folder.path);
  if (config.ok() && config->head_dim <= 4096) (void)rope_frequencies(*config);
  fs::remove(folder.path / "generation_config.json");
  return 0;
}
