#include "gpu/model/model_folder.h"

#include <doctest/doctest.h>

#include "gpu/tiny_model.h"

namespace seer {
namespace {

const std::string kLayout = ": a model is a folder in Hugging Face layout (config.json and model.safetensors)";

Error refusal(const std::filesystem::path& path) {
  const Status status = check_model_folder(path);
  REQUIRE_FALSE(status.ok());
  return status.error();
}

TEST_CASE("model folder: one with config.json and safetensors is taken, whatever is in them") {
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json"}) {
    TestFolder folder;
    write_file(folder.path() / "config.json", "");
    write_file(folder.path() / weights, "");
    write_file(folder.path() / "pytorch_model.bin", "");  // beside weights that can be read
    CHECK(check_model_folder(folder.path()).ok());
  }
}

TEST_CASE("model folder: where others run the model, its weights may be missing, and nothing else") {
  TestFolder folder;
  CHECK(check_model_folder(folder.path(), ModelFiles::kWithoutWeights).error().detail ==
        cat("there is no file ", (folder.path() / "config.json").string(), kLayout));
  write_file(folder.path() / "config.json", "");
  CHECK(check_model_folder(folder.path(), ModelFiles::kWithoutWeights).ok());
  CHECK_FALSE(check_model_folder(folder.path()).ok());
}

TEST_CASE("model folder: a missing path is kNotFound, and for a name of the hub the error says how to get it") {
  TestFolder folder;
  const auto none = folder.path() / "none";
  CHECK(refusal(none).code == Code::kNotFound);
  CHECK(refusal(none).detail == "there is no folder " + none.string());
  CHECK(refusal("Qwen/Qwen2.5-0.5B").code == Code::kNotFound);
  CHECK(refusal("Qwen/Qwen2.5-0.5B").detail ==
        "there is no folder Qwen/Qwen2.5-0.5B" + kLayout +
            " on this machine; to get one from the hub: huggingface-cli download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B");
  for (const char* path : {"./no_owner/name", "no_owner/name/more", "no_owner", "/no_owner/name", "~/name"})
    CHECK(refusal(path).detail == cat("there is no folder ", path));
}

TEST_CASE("model folder: a file is kInvalidArgument, with what it is") {
  TestFolder folder;
  const auto gguf = folder.path() / "q4.gguf", text = folder.path() / "text";
  write_file(gguf, "GGUF\3");
  write_file(text, "text");
  CHECK(refusal(gguf).code == Code::kInvalidArgument);
  CHECK(refusal(gguf).detail == gguf.string() + " is a GGUF file" + kLayout);
  CHECK(refusal(text).detail == text.string() + " is not a folder" + kLayout);
}

TEST_CASE("model folder: a missing file is named, with the first weights of another format that are there") {
  TestFolder folder;
  const std::string missing = "there is no file " + (folder.path() / "model.safetensors").string();
  write_file(folder.path() / "config.json", "");
  CHECK(refusal(folder.path()).code == Code::kNotFound);
  CHECK(refusal(folder.path()).detail == missing + kLayout);
  for (const char* other : {"z.safetensors", "y.pth", "x.pt", "pytorch_model.bin", "a.gguf"}) {
    write_file(folder.path() / other, "");
    CHECK(refusal(folder.path()).code == Code::kInvalidArgument);
    CHECK(refusal(folder.path()).detail == cat(missing, "; the folder has ", other, ", which Seer does not read", kLayout));
  }
  write_file(folder.path() / "model.safetensors", "");
  std::filesystem::remove(folder.path() / "config.json");
  CHECK(refusal(folder.path()).code == Code::kNotFound);
  CHECK(refusal(folder.path()).detail == "there is no file " + (folder.path() / "config.json").string() + kLayout);
}

TEST_CASE("model folder: a LoRA adapter is refused even beside whole weights") {
  TestFolder folder;
  for (const char* name : {"config.json", "model.safetensors", "adapter_config.json"}) write_file(folder.path() / name, "");
  CHECK(refusal(folder.path()).code == Code::kInvalidArgument);
  CHECK(refusal(folder.path()).detail.starts_with((folder.path() / "adapter_config.json").string() +
                                                  ": the folder is that of a LoRA adapter"));
}

}  // namespace
}  // namespace seer
