#include "gpu/model/model_folder.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "gpu/text/json_text.h"

namespace seer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLayout = "a folder in Hugging Face layout (config.json and model.safetensors)";

// "owner/name", as on the Hugging Face hub, and no path to anything here.
bool is_hub_name(const fs::path& path) {
  const std::string text = path.string();
  const size_t slash = text.find('/');
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word[0] != '.' && word[0] != '~' && std::ranges::all_of(word, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
             c == '-';
    });
  };
  std::error_code ec;
  return slash != std::string::npos && is_word(std::string_view(text).substr(0, slash)) &&
         is_word(std::string_view(text).substr(slash + 1)) && !fs::exists(path.parent_path(), ec);
}

std::string first_bytes(const fs::path& path) {
  std::string bytes(64, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

// The first file, by name, that holds weights in another format; empty if there is none.
std::string other_weights(const fs::path& folder) {
  std::string found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string(), extension = it->path().extension().string();
    const bool weights = extension == ".gguf" || extension == ".bin" || extension == ".pt" || extension == ".pth" ||
                         extension == ".safetensors";
    if (weights && (found.empty() || name < found)) found = name;
  }
  return found;
}

}  // namespace

Status check_model_folder(const fs::path& folder, ModelFiles files) {
  const std::string name = shortened(folder.string(), 200);
  std::error_code ec;
  const fs::file_status status = fs::status(folder, ec);
  if (!fs::exists(status)) {
    if (!is_hub_name(folder)) return fail(Code::kNotFound, "there is no folder ", name);
    return fail(Code::kNotFound, "there is no folder ", name, ": a model is ", kLayout,
                " on this machine; to get one from the hub: huggingface-cli download ", name, " --local-dir ",
                shortened(folder.filename().string(), 100));
  }
  if (!fs::is_directory(status)) {
    const std::string_view format = fs::is_regular_file(status) ? known_format(first_bytes(folder)) : "";
    return fail(Code::kInvalidArgument, name, " is ", format.empty() ? "not a folder" : format, ": a model is ",
                kLayout);
  }
  // Hugging Face would load the adapter and the model it names, and not look at the weights beside it.
  if (fs::exists(folder / "adapter_config.json", ec))
    return fail(Code::kInvalidArgument, (folder / "adapter_config.json").string(),
                ": the folder is that of a LoRA adapter: merge the adapter into its model, or remove this file");
  const bool weights = files == ModelFiles::kWithoutWeights || fs::exists(folder / "model.safetensors", ec) ||
                       fs::exists(folder / "model.safetensors.index.json", ec);
  const std::string other = weights ? "" : other_weights(folder);
  const std::string missing = !weights                                  ? "model.safetensors"
                              : !fs::exists(folder / "config.json", ec) ? "config.json"
                                                                        : "";
  if (missing.empty()) return {};
  return fail(other.empty() ? Code::kNotFound : Code::kInvalidArgument, "there is no file ",
              (folder / missing).string(),
              other.empty() ? "" : cat("; the folder has ", shortened(other), ", which Seer does not read"),
              ": a model is ", kLayout);
}

}  // namespace seer
