// Counts machine instructions in a cubin (sm_80 to sm_90), where there is no disassembler: an instruction has 16 bytes,
// and its low 9 bits say what it is. Per kernel: all, and those of its main loop (the backward branch around the most
// HMMA, or else the most global loads). `--max-local N` fails where more than N instructions touch local memory, KERNEL=R where the
// main loop of that kernel has more than R instructions per HMMA.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

template <class T>
T at(const std::string& bytes, size_t offset) {
  T x;
  std::memcpy(&x, bytes.data() + offset, sizeof x);
  return x;
}
const std::map<int, const char*> kNames = {
    {0x03c, "HMMA"},  {0x03b, "LDSM"}, {0x023, "FFMA"}, {0x020, "FMUL"}, {0x021, "FADD"}, {0x108, "MUFU"},
    {0x024, "IMAD"},  {0x025, "IMAD"}, {0x027, "IMAD"}, {0x010, "IADD3"}, {0x011, "LEA"}, {0x012, "LOP3"}, {0x019, "SHF"},
    {0x181, "LDG"},   {0x186, "STG"},  {0x184, "LDS"},  {0x188, "STS"},  {0x1ae, "LDGSTS"}, {0x189, "SHFL"},
    {0x18d, "ATOMS"}, {0x11d, "BAR"},  {0x147, "BRA"},  {0x183, "LDL"},  {0x187, "STL"}};

struct Code {
  std::vector<int> op;
  std::vector<int64_t> target;  // of a branch, an index; else -1
};
Code decode(const std::string& text) {
  Code code;
  for (size_t i = 0; i + 16 <= text.size(); i += 16) {
    const auto low = at<uint64_t>(text, i), high = at<uint64_t>(text, i + 8);
    const int op = static_cast<int>(low & 0x1ff);
    int64_t target = -1;
    if (op == 0x147) {  // offset / 4: low 8 bits at 16, the rest from 34
      const uint64_t upper = (low >> 34 | high << 30) & 0xffffffffff;
      const auto words = static_cast<int64_t>((upper << 8 | (low >> 16 & 0xff)) << 16) >> 16;
      target = (static_cast<int64_t>(i) + 16 + words * 4) / 16;
    }
    code.op.push_back(op);
    code.target.push_back(target);
  }
  return code;
}
std::map<std::string, int> count(const Code& code, size_t from, size_t to) {
  std::map<std::string, int> n;
  for (size_t i = from; i < to; ++i) {
    const auto it = kNames.find(code.op[i]);
    ++n[it == kNames.end() ? "other" : it->second];
  }
  return n;
}
void print(const char* what, const std::map<std::string, int>& n) {
  int all = 0;
  for (const auto& [name, k] : n) all += k;
  std::printf("  %-9s %5d:", what, all);
  for (const auto& [name, k] : n) std::printf(" %s %d", name.c_str(), k);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  const std::string elf{std::istreambuf_iterator<char>(file), {}};
  const int local_max = argc > 3 && std::string(argv[2]) == "--max-local" ? std::atoi(argv[3]) : 1 << 30;
  const auto sections = at<uint64_t>(elf, 0x28);
  const auto size = at<uint16_t>(elf, 0x3a), sections_count = at<uint16_t>(elf, 0x3c), names = at<uint16_t>(elf, 0x3e);
  const auto names_at = at<uint64_t>(elf, sections + uint64_t{names} * size + 24);
  bool ok = true;
  for (unsigned s = 0; s < sections_count; ++s) {
    const uint64_t header = sections + uint64_t{s} * size;
    const std::string name = elf.data() + names_at + at<uint32_t>(elf, header);
    if (!name.starts_with(".text.")) continue;
    const Code code = decode(elf.substr(at<uint64_t>(elf, header + 24), at<uint64_t>(elf, header + 32)));
    std::printf("%s\n", name.c_str() + 6);
    std::map<std::string, int> all = count(code, 0, code.op.size()), loop;
    print("all", all);
    for (const char* what : {"HMMA", "LDG"}) {
      size_t length = 0;
      for (size_t i = 0; i < code.op.size(); ++i) {
        if (code.target[i] < 0 || code.target[i] >= static_cast<int64_t>(i)) continue;
        auto n = count(code, static_cast<size_t>(code.target[i]), i + 1);
        const size_t l = i + 1 - static_cast<size_t>(code.target[i]);
        if (n[what] > loop[what] || (n[what] > 0 && n[what] == loop[what] && l < length)) loop = n, length = l;
      }
      if (loop[what]) break;
    }
    print("main loop", loop);
    int instructions = 0;
    for (const auto& [op, n] : loop) instructions += n;
    if (loop["HMMA"]) {
      const double per_hmma = static_cast<double>(instructions) / loop["HMMA"];
      std::printf("  instructions per HMMA in the main loop: %.1f\n", per_hmma);
      for (int i = 4; i < argc; ++i) {
        const std::string bar = argv[i], kernel = bar.substr(0, bar.find('='));
        if (name.substr(6) == kernel && per_hmma > std::atof(bar.c_str() + kernel.size() + 1))
          std::printf("  expected %s\n", argv[i]), ok = false;
      }
    }
    const int local = all["LDL"] + all["STL"];
    if (local > local_max) std::printf("  touches local memory %d times, at most %d expected\n", local, local_max), ok = false;
  }
  return ok ? 0 : 1;
}
