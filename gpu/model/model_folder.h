// What a user gives as a model: says in one sentence when it is not a folder that Seer can read, and what it is
// instead.
#pragma once
#include <filesystem>

#include "protocols/result.h"

namespace seer {

/// Checks that `folder` is a folder with config.json and safetensors; their contents are for others to check.
/// Errors: kNotFound (no such folder, or a file is missing from it), kInvalidArgument (a file, or weights of another
/// format).
Status check_model_folder(const std::filesystem::path& folder);

}  // namespace seer
