// Checks what a user gives as a model: if it is not a folder that Seer can read, one sentence says so and what it is
// instead.
#pragma once
#include <filesystem>

#include "protocols/result.h"

namespace seer {

/// kWithoutWeights: for requests that other machines or servers run.
enum class ModelFiles { kAll, kWithoutWeights };

/// Checks that `folder` is a folder with config.json and safetensors, but not their contents.
/// Errors: kNotFound (no such folder, or a file is missing from it), kInvalidArgument (a file, or weights of another
/// format).
Status check_model_folder(const std::filesystem::path& folder, ModelFiles files = ModelFiles::kAll);

}  // namespace seer
