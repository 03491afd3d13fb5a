// Runs the PTX that nvcc made of a kernel on the fibers of simt.h, with all of its checks: the compiler's own output is
// tested, inline asm included. Knows the instructions that our kernels use; another one is a finding when it is reached.
// Not as on a GPU: ex2, lg2 and such are the host's, and an mma adds in the order that simt::options() says.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "simt/simt.h"

namespace simt {

class PtxModule {
  struct Program;

 public:
  explicit PtxModule(const std::string& text);
  ~PtxModule();
  PtxModule(PtxModule&&) noexcept;
  PtxModule& operator=(PtxModule&&) noexcept;
  /// `params` point to the entry's arguments. False if no entry has this name and takes that many.
  bool launch(const std::string& entry, Dim3 grid, Dim3 block, size_t shared_bytes, std::vector<const void*> params);
  /// Instructions that no launch has reached yet, as "file:line opcode", for coverage.
  struct Unreached {
    std::vector<std::string> instructions;
    std::vector<std::string> branches;  // reached, but never taken
  };
  Unreached unreached() const;

 private:
  std::unique_ptr<Program> program_;
};

/// That of ptx_kernels.cpp.
PtxModule& ptx_module();
/// Replaces the first `from` in an entry of the file's text; an empty one restores the text. False: there is none.
bool edit_ptx(const std::string& entry, const std::string& from, const std::string& to);

}  // namespace simt
