#include "simt/ptx.h"

#include <alloca.h>

#include <algorithm>
#include <bit>
#include <map>
#include <sstream>
#include <utility>

namespace simt {
namespace {

enum Special : size_t { kTid, kNtid = 3, kCtaid = 6, kNctaid = 9, kLane = 12, kSpecials };
enum class Op : uint8_t {
  kAdd, kSub, kMulLo, kMulHi, kMulWide, kMadLo, kDiv, kRem, kNeg, kAbs, kMin, kMax, kAnd, kOr, kXor, kNot, kShl, kShr,
  kSetp, kSelp, kMov, kCvt, kCopy, kLd, kSt, kBra, kRet, kBar, kWarpSync, kShfl, kBallot, kPopc, kBrev, kBfind, kBfi, kFma,
  kSqrt, kRcp, kEx2, kLg2, kAtomAdd, kAtomOr, kMma, kLdmatrix, kCpAsync, kCommit, kWait,
  kGroupShow, kGroupBegin, kGroupMma, kGroupCommit, kGroupWait, kNothing, kUnknown
};
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam };
enum class Compare : uint8_t { kNone, kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kNumbers, kNaN };
struct Type {
  char kind = 'b';  // b, u, s, f, p, h (bf16x2)
  int bits = 32;
};
using Operand = int32_t;  // the number of a register, or below 0 of a constant: see Entry
struct Instruction {
  Op op = Op::kUnknown;
  Type type, from;
  Space space = Space::kGeneric;
  Compare compare = Compare::kNone;
  bool or_unordered = false;  // setp: also true of what is not a number
  bool flag = false;  // ldmatrix: transposed; bfind: shift amount
  char mode = 0;      // shfl: u, d, b, i; setp: a, o for and, or
  bool guard_not = false;
  mutable bool reached = false;  // and its guard held
  mutable bool passed = false;   // a branch: it was not taken
  int guard = -1;     // predicate register
  int param = -1;
  std::vector<Operand> to, in;
  int64_t offset = 0;
  size_t target = 0;
  std::string place;
  std::string name;  // the opcode as written
};
struct Entry {
  std::vector<Instruction> code;
  size_t registers = 0;
  /// Below a thread's first register it has what is constant for it: kSpecials of itself, addresses of parameters, then literals; the
  /// first lies next to the registers.
  std::vector<uint64_t> literals;
  size_t params = 0;
  size_t constants() const { return kSpecials + params + literals.size(); }
};
constexpr Operand constant(size_t i) { return -1 - static_cast<Operand>(i); }
constexpr uint64_t kSharedBase = 1024;  // where shared memory lies in its window
// What wgmma is told of a matrix besides its address: rows of 128 bytes, swizzled, eight after 1024 bytes.
constexpr uint64_t kMatrix = uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
constexpr uint64_t kUnset = 0x5a5a5a5a5a5a5a5a;  // a register that has no value

std::vector<std::string> split(const std::string& s, char by) {
  std::vector<std::string> out;
  std::string piece;
  int depth = 0;
  for (char c : s) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == by && depth == 0) {
      out.push_back(piece);
      piece.clear();
    } else if (c != ' ' && c != '\t') {
      piece += c;
    }
  }
  if (!piece.empty()) out.push_back(piece);
  return out;
}
bool type_of(const std::string& s, Type& t) {
  if (s == "pred") return t = {'p', 1}, true;
  if (s == "bf16x2") return t = {'h', 32}, true;
  if (s.size() < 2 || !std::strchr("busf", s[0]) || !std::isdigit(s[1])) return false;
  return t = {s[0], std::stoi(s.substr(1))}, true;
}

struct Parser {
  std::map<std::string, std::pair<size_t, size_t>> registers;  // prefix -> first, count
  std::map<std::string, int> params;
  std::map<std::string, size_t> labels;
  std::vector<std::pair<size_t, std::string>> jumps;
  Entry entry;

  Operand operand(const std::string& s) {
    static const std::map<std::string, size_t> specials = {
        {"%tid.x", kTid}, {"%tid.y", kTid + 1}, {"%tid.z", kTid + 2}, {"%ntid.x", kNtid}, {"%ntid.y", kNtid + 1},
        {"%ntid.z", kNtid + 2}, {"%ctaid.x", kCtaid}, {"%ctaid.y", kCtaid + 1}, {"%ctaid.z", kCtaid + 2},
        {"%nctaid.x", kNctaid}, {"%nctaid.y", kNctaid + 1}, {"%nctaid.z", kNctaid + 2}, {"%laneid", kLane}};
    if (auto it = specials.find(s); it != specials.end()) return constant(it->second);
    if (s[0] == '%') {
      const size_t digits = s.find_first_of("0123456789");
      return static_cast<Operand>(registers.at(s.substr(0, digits)).first + std::stoul(s.substr(digits)));
    }
    if (s.starts_with("0f") || s.starts_with("0d")) return literal(std::stoull(s.substr(2), nullptr, 16));
    if (std::isdigit(s[0]) || s[0] == '-') return literal(static_cast<uint64_t>(std::stoll(s, nullptr, 0)));
    if (auto it = params.find(s); it != params.end()) return constant(kSpecials + static_cast<size_t>(it->second));
    return literal(kSharedBase);  // the one shared array
  }
  Operand literal(uint64_t value) {
    const size_t at = static_cast<size_t>(std::ranges::find(entry.literals, value) - entry.literals.begin());
    if (at == entry.literals.size()) entry.literals.push_back(value);
    return constant(kSpecials + entry.params + at);
  }
  void add(std::string text, const std::string& place) {
    Instruction in;
    in.place = place;
    if (text[0] == '@') {
      in.guard_not = text[1] == '!';
      const size_t space = text.find_first_of(" \t");
      in.guard = operand(text.substr(in.guard_not ? 2 : 1, space - (in.guard_not ? 2 : 1)));
      text = text.substr(text.find_first_not_of(" \t", space));
    }
    const size_t space = std::min(text.find_first_of(" \t"), text.size());
    in.name = text.substr(0, space);
    const std::vector<std::string> parts = split(in.name, '.'), operands = split(text.substr(space), ',');
    const auto has = [&](const char* p) { return std::find(parts.begin(), parts.end(), p) != parts.end(); };
    std::vector<Type> types;
    for (const std::string& p : parts)
      if (Type t; type_of(p, t)) types.push_back(t);
    if (!types.empty()) in.type = types[0];
    if (types.size() > 1) in.from = types[1];
    in.space = has("param") ? Space::kParam : has("shared") ? Space::kShared : has("global") ? Space::kGlobal : Space::kGeneric;
    static const std::map<std::string, Op> simple = {
        {"add", Op::kAdd}, {"sub", Op::kSub}, {"div", Op::kDiv}, {"rem", Op::kRem}, {"neg", Op::kNeg}, {"abs", Op::kAbs},
        {"min", Op::kMin}, {"max", Op::kMax}, {"and", Op::kAnd}, {"or", Op::kOr}, {"xor", Op::kXor}, {"not", Op::kNot},
        {"shl", Op::kShl}, {"shr", Op::kShr}, {"setp", Op::kSetp}, {"selp", Op::kSelp}, {"mov", Op::kMov},
        {"cvt", Op::kCvt}, {"cvta", Op::kCopy}, {"ld", Op::kLd}, {"st", Op::kSt}, {"bra", Op::kBra}, {"ret", Op::kRet},
        {"shfl", Op::kShfl}, {"vote", Op::kBallot}, {"popc", Op::kPopc}, {"brev", Op::kBrev}, {"bfind", Op::kBfind},
        {"bfi", Op::kBfi}, {"fma", Op::kFma}, {"sqrt", Op::kSqrt}, {"rcp", Op::kRcp}, {"ex2", Op::kEx2}, {"lg2", Op::kLg2},
        {"mma", Op::kMma}, {"ldmatrix", Op::kLdmatrix}};
    if (auto it = simple.find(parts[0]); it != simple.end()) in.op = it->second;
    if (parts[0] == "mul") in.op = types[0].kind == 'f' || has("lo") ? Op::kMulLo : has("hi") ? Op::kMulHi : Op::kMulWide;
    if (parts[0] == "mad" && has("lo")) in.op = Op::kMadLo;
    if (parts[0] == "bar") in.op = has("warp") ? Op::kWarpSync : Op::kBar;
    if (parts[0] == "barrier") in.op = Op::kBar;
    if (parts[0] == "atom" && has("add")) in.op = Op::kAtomAdd;
    if ((parts[0] == "atom" || parts[0] == "red") && has("or")) in.op = Op::kAtomOr;
    if (parts[0] == "cp") in.op = has("commit_group") ? Op::kCommit : has("wait_group") ? Op::kWait : Op::kCpAsync;
    if (parts[0] == "griddepcontrol") in.op = Op::kNothing;  // kernels run one after the other here
    if (in.name == "fence.proxy.async.shared::cta") in.op = Op::kGroupShow;
    if (parts[0] == "wgmma") {
      static const std::map<std::string, Op> group = {{"fence", Op::kGroupBegin}, {"mma_async", Op::kGroupMma},
                                                      {"commit_group", Op::kGroupCommit}, {"wait_group", Op::kGroupWait}};
      if (auto it = group.find(parts[1]); it != group.end()) in.op = it->second;
    }
    if (in.op == Op::kSetp) {
      static const std::map<std::string, Compare> kinds = {
          {"eq", Compare::kEqual}, {"ne", Compare::kNotEqual}, {"lt", Compare::kLess}, {"lo", Compare::kLess}, {"le", Compare::kLessEqual},
          {"ls", Compare::kLessEqual}, {"gt", Compare::kGreater}, {"hi", Compare::kGreater}, {"ge", Compare::kGreaterEqual},
          {"hs", Compare::kGreaterEqual}, {"num", Compare::kNumbers}, {"nan", Compare::kNaN}};
      auto kind = kinds.find(parts[1]);
      in.or_unordered = kind == kinds.end();  // equ, ltu ...
      if (in.or_unordered) kind = kinds.find(parts[1].substr(0, 2));
      if (kind == kinds.end()) in.op = Op::kUnknown;
      else in.compare = kind->second;
      in.mode = has("and") ? 'a' : has("or") ? 'o' : 0;
    }
    if (in.op == Op::kShfl) in.mode = parts[2][0] == 'b' ? 'b' : parts[2][0];
    if (in.op == Op::kBallot && !has("ballot")) in.op = Op::kUnknown;
    in.flag = has("trans") || has("shiftamt");
    if (in.op == Op::kMma) {
      if (in.name != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") in.op = Op::kUnknown;
      in.type = {'f', 32};
    }
    if (in.op == Op::kLdmatrix && !has("x4")) in.op = Op::kUnknown;

    if (in.op == Op::kBra) {
      jumps.push_back({entry.code.size(), operands[0]});
      entry.code.push_back(in);
      return;
    }
    const bool first_is_input = in.op == Op::kSt || in.op == Op::kCpAsync || in.op == Op::kBar || in.op == Op::kWarpSync ||
                                in.op == Op::kWait || in.op == Op::kGroupWait || parts[0] == "red";
    for (size_t i = 0; i < operands.size() && in.op != Op::kUnknown; ++i) {
      std::string s = operands[i];
      auto& list = i == 0 && !first_is_input ? in.to : in.in;
      if (s[0] == '{') {
        for (const std::string& e : split(s.substr(1, s.size() - 2), ',')) list.push_back(operand(e));
      } else if (s[0] == '[') {
        s = s.substr(1, s.size() - 2);
        const size_t plus = s.find('+', 1);
        const std::string base = s.substr(0, plus);
        if (plus != std::string::npos && i == (first_is_input ? 0u : 1u)) in.offset = std::stoll(s.substr(plus + 1));
        if (auto it = params.find(base); it != params.end()) {
          in.param = it->second;
        } else {
          list.push_back(operand(base));
        }
      } else {
        const size_t bar = s.find('|');  // shfl: %r1|%p1
        list.push_back(operand(s.substr(0, bar)));
        if (bar != std::string::npos) list.push_back(operand(s.substr(bar + 1)));
      }
    }
    if (in.op == Op::kGroupMma && in.name != "wgmma.mma_async.sync.aligned.m64n" + std::to_string(in.to.size() * 2) + "k16.f32.bf16.bf16")
      in.op = Op::kUnknown;
    entry.code.push_back(in);
  }
};

// --- what one thread does ---
template <class T>
T as(uint64_t bits) {
  T x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
template <class T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class T, class Fn>
uint64_t binary(uint64_t a, uint64_t b, Fn fn) { return bits_of<T>(static_cast<T>(fn(as<T>(a), as<T>(b)))); }
template <class Fn>
uint64_t on_type(Type t, uint64_t a, uint64_t b, Fn fn) {
  if (t.kind == 'f') return t.bits == 32 ? binary<float>(a, b, fn) : binary<double>(a, b, fn);
  if (t.kind == 's')
    return t.bits == 16 ? binary<int16_t>(a, b, fn) : t.bits == 32 ? binary<int32_t>(a, b, fn) : binary<int64_t>(a, b, fn);
  return t.bits == 16 ? binary<uint16_t>(a, b, fn) : t.bits == 32 ? binary<uint32_t>(a, b, fn) : binary<uint64_t>(a, b, fn);
}
uint64_t cut(uint64_t x, int bits) { return bits >= 64 ? x : x & ((uint64_t{1} << bits) - 1); }
template <class T>
bool compare(const Instruction& in, T a, T b) {
  const bool unordered = a != a || b != b;
  if (in.or_unordered && unordered) return true;
  switch (in.compare) {
    case Compare::kNone: return false;
    case Compare::kEqual: return a == b;
    case Compare::kNotEqual: return a != b && !unordered;
    case Compare::kLess: return a < b;
    case Compare::kLessEqual: return a <= b;
    case Compare::kGreater: return a > b;
    case Compare::kGreaterEqual: return a >= b;
    case Compare::kNumbers: return !unordered;
    case Compare::kNaN: return unordered;
  }
  return false;
}
uint64_t convert(Type to, Type from, uint64_t a, uint64_t b) {
  const auto bf16 = [](float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    return x != x ? uint64_t{0x7fff} : uint64_t{(bits + 0x7fff + (bits >> 16 & 1)) >> 16};
  };
  if (to.kind == 'h') return bf16(as<float>(a)) << 16 | bf16(as<float>(b));
  if (from.kind == 'f') {
    const double x = from.bits == 32 ? static_cast<double>(as<float>(a)) : as<double>(a);
    if (to.kind == 'f') return to.bits == 32 ? bits_of(static_cast<float>(x)) : bits_of(x);
    return cut(to.kind == 's' ? static_cast<uint64_t>(static_cast<int64_t>(x)) : static_cast<uint64_t>(x), to.bits);
  }
  const auto whole = static_cast<int64_t>(cut(a, from.bits) << (64 - from.bits)) >> (64 - from.bits);
  const uint64_t value = from.kind == 's' ? static_cast<uint64_t>(whole) : cut(a, from.bits);
  if (to.kind != 'f') return cut(value, to.bits);
  if (from.kind == 's')
    return to.bits == 32 ? bits_of(static_cast<float>(whole)) : bits_of(static_cast<double>(whole));
  return to.bits == 32 ? bits_of(static_cast<float>(value)) : bits_of(static_cast<double>(value));
}

struct Call {
  const Entry* entry;
  std::vector<const void*> params;
};

void run_thread(const void* p) {
  const Call& call = *static_cast<const Call*>(p);
  const Entry& entry = *call.entry;
  uint64_t* const r = static_cast<uint64_t*>(alloca((entry.constants() + entry.registers) * 8)) + entry.constants();
  std::fill_n(r, entry.registers, kUnset);
  size_t filled = 0;
  const auto fill = [&](uint64_t value) { r[constant(filled++)] = value; };
  for (const Dim3& d : {thread_idx(), block_dim(), block_idx(), grid_dim()})
    for (const unsigned n : {d.x, d.y, d.z}) fill(n);
  const auto lane = static_cast<int>(thread_idx().x % 32);
  fill(static_cast<uint64_t>(lane));
  for (const void* param : call.params) fill(reinterpret_cast<uint64_t>(param));
  for (const uint64_t literal : entry.literals) fill(literal);
  float group_sums[32][4];  // of wgmma
  const std::vector<Operand>* group_to = nullptr;  // the registers that get them after the wait
  for (size_t at = 0; at < entry.code.size(); ++at) {
    const Instruction& in = entry.code[at];
    if (in.guard >= 0 && (r[in.guard] != 0) == in.guard_not) {
      in.passed = true;
      continue;
    }
    in.reached = true;
    set_place(&in.place);
    const auto a = [&](size_t i) { return r[in.in[i]]; };
    const auto put = [&](uint64_t x) { r[in.to[0]] = cut(x, in.type.bits); };
    const auto address = [&](uint64_t x, Space space) {
      if (space == Space::kShared) return reinterpret_cast<char*>(dynamic_shared()) + (cut(x, 32) - kSharedBase);
      return reinterpret_cast<char*>(x);
    };
    switch (in.op) {
      case Op::kAdd: put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return x + y; })); break;
      case Op::kSub: put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return x - y; })); break;
      case Op::kMulLo:
        if (in.type.kind == 'f') put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return x * y; }));
        else put(a(0) * a(1));
        break;
      case Op::kMulHi:
        put(in.type.kind == 's' ? static_cast<uint64_t>(int64_t{as<int32_t>(a(0))} * as<int32_t>(a(1)) >> 32)
                                : cut(a(0), 32) * cut(a(1), 32) >> 32);
        if (in.type.bits == 64) throw 0;
        break;
      case Op::kMulWide:
        r[in.to[0]] = in.type.kind == 's' ? static_cast<uint64_t>(int64_t{as<int32_t>(a(0))} * as<int32_t>(a(1)))
                                                : cut(a(0), 32) * cut(a(1), 32);
        break;
      case Op::kMadLo: put(a(0) * a(1) + a(2)); break;
      case Op::kDiv: put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return x / y; })); break;
      case Op::kRem:
        put(on_type(in.type, a(0), a(1), [](auto x, auto y) {
          if constexpr (std::is_integral_v<decltype(x)>) return x % y;
          else return x;
        }));
        break;
      case Op::kNeg: put(on_type(in.type, a(0), 0, [](auto x, auto) { return -x; })); break;
      case Op::kAbs: put(on_type(in.type, a(0), 0, [](auto x, auto) { return x < 0 ? -x : x; })); break;
      case Op::kMin: put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return y != y || x < y ? x : y; })); break;
      case Op::kMax: put(on_type(in.type, a(0), a(1), [](auto x, auto y) { return y != y || x > y ? x : y; })); break;
      case Op::kAnd: put(a(0) & a(1)); break;
      case Op::kOr: put(a(0) | a(1)); break;
      case Op::kXor: put(a(0) ^ a(1)); break;
      case Op::kNot: put(~a(0)); break;
      case Op::kShl: put(cut(a(1), 32) >= 64 ? 0 : cut(a(0), in.type.bits) << cut(a(1), 32)); break;
      case Op::kShr: {
        const uint64_t by = cut(a(1), 32);
        if (in.type.kind == 's') put(convert({'s', 64}, in.type, a(0), 0) == 0 ? 0 : static_cast<uint64_t>(static_cast<int64_t>(convert({'s', 64}, in.type, a(0), 0)) >> std::min<uint64_t>(by, 63)));
        else put(by >= 64 ? 0 : cut(a(0), in.type.bits) >> by);
        break;
      }
      case Op::kSetp: {
        bool yes = false;
        on_type(in.type, a(0), a(1), [&](auto x, auto y) { return yes = compare(in, x, y), x; });
        if (in.mode == 'a') yes = yes && a(2);
        if (in.mode == 'o') yes = yes || a(2);
        r[in.to[0]] = yes;
        break;
      }
      case Op::kSelp: put(a(2) ? a(0) : a(1)); break;
      case Op::kMov:
        if (in.to.size() == 2) {
          r[in.to[0]] = cut(a(0), in.type.bits / 2);
          r[in.to[1]] = cut(a(0) >> in.type.bits / 2, in.type.bits / 2);
        } else if (in.in.size() == 2) {
          put(a(0) | a(1) << in.type.bits / 2);
        } else {
          put(a(0));
        }
        break;
      case Op::kCvt: put(convert(in.type, in.from, a(0), in.in.size() > 1 ? a(1) : 0)); break;
      case Op::kCopy: put(a(0)); break;  // cvta.to.global: the same address
      case Op::kLd: {
        const int bytes = in.type.bits / 8, all = bytes * static_cast<int>(in.to.size());
        const char* from = in.param >= 0 ? static_cast<const char*>(call.params[in.param]) + in.offset
                                         : address(a(0), in.space) + in.offset;
        if (in.param < 0 && in.space != Space::kParam) access(from, all, false);
        for (const Operand to : in.to) {
          uint64_t x = 0;
          std::memcpy(&x, from, bytes);
          r[to] = x;
          from += bytes;
        }
        break;
      }
      case Op::kSt: {
        const int bytes = in.type.bits / 8;
        char* to = address(a(0), in.space) + in.offset;
        access(to, bytes * static_cast<int>(in.in.size() - 1), true);
        for (size_t i = 1; i < in.in.size(); ++i, to += bytes) {
          const uint64_t x = a(i);
          std::memcpy(to, &x, bytes);
        }
        break;
      }
      case Op::kBra: at = in.target - 1; break;
      case Op::kRet: set_place(nullptr); return;
      case Op::kBar: barrier(); break;
      case Op::kWarpSync: sync_warp(static_cast<uint32_t>(a(0))); break;
      case Op::kShfl: {
        const int by = static_cast<int>(a(1));
        int from = in.mode == 'u' ? lane - by : in.mode == 'd' ? lane + by : in.mode == 'b' ? lane ^ by : by & 31;
        if (from < 0 || from > 31) from = lane;
        const uint64_t x = shuffle(static_cast<uint32_t>(r[in.in.back()]), a(0), from);
        put(x);
        if (in.to.size() > 1) r[in.to[1]] = in.mode == 'u' ? lane >= by : 1;
        break;
      }
      case Op::kBallot: put(ballot(static_cast<uint32_t>(a(1)), a(0) != 0)); break;
      case Op::kPopc: r[in.to[0]] = static_cast<uint64_t>(__builtin_popcountll(cut(a(0), in.type.bits))); break;
      case Op::kBrev: {
        uint64_t x = 0;
        for (int i = 0; i < in.type.bits; ++i) x |= (a(0) >> i & 1) << (in.type.bits - 1 - i);
        put(x);
        break;
      }
      case Op::kBfind: {
        const uint64_t x = cut(a(0), in.type.bits);
        const int top = x ? 63 - __builtin_clzll(x) : -1;
        r[in.to[0]] = cut(static_cast<uint64_t>(top < 0 || !in.flag ? top : in.type.bits - 1 - top), 32);
        break;
      }
      case Op::kBfi: {
        const uint64_t mask = cut(~uint64_t{0}, static_cast<int>(a(3))) << a(2);
        put((a(1) & ~mask) | (a(0) << a(2) & mask));
        break;
      }
      case Op::kFma:
        put(in.type.bits == 32 ? bits_of(fmaf(as<float>(a(0)), as<float>(a(1)), as<float>(a(2))))
                               : bits_of(fma(as<double>(a(0)), as<double>(a(1)), as<double>(a(2)))));
        break;
      case Op::kSqrt: put(bits_of(sqrtf(as<float>(a(0))))); break;
      case Op::kRcp: put(bits_of(1.0f / as<float>(a(0)))); break;
      case Op::kEx2: put(bits_of(exp2f(as<float>(a(0))))); break;
      case Op::kLg2: put(bits_of(log2f(as<float>(a(0))))); break;
      case Op::kAtomAdd: put(atomic_add(address(a(0), in.space) + in.offset, a(1), in.type.bits / 8)); break;
      case Op::kAtomOr: {
        const uint64_t old = atomic_or(address(a(0), in.space) + in.offset, a(1), in.type.bits / 8);
        if (!in.to.empty()) put(old);
        break;
      }
      case Op::kMma: {
        float d[4];
        uint32_t fa[4], fb[2];
        for (int i = 0; i < 4; ++i) {
          fa[i] = static_cast<uint32_t>(a(i));
          d[i] = as<float>(a(6 + i));
        }
        for (int i = 0; i < 2; ++i) fb[i] = static_cast<uint32_t>(a(4 + i));
        mma_bf16(d, fa, fb);
        for (int i = 0; i < 4; ++i) r[in.to[i]] = bits_of(d[i]);
        break;
      }
      case Op::kLdmatrix: {
        uint32_t x[4];
        load_matrix(address(a(0), Space::kShared) + in.offset, x, in.flag);
        for (int i = 0; i < 4; ++i) r[in.to[i]] = x[i];
        break;
      }
      case Op::kCpAsync: {
        const int bytes = static_cast<int>(a(2));
        async_copy(address(a(0), Space::kShared) + in.offset, reinterpret_cast<const void*>(a(1)), bytes,
                   in.in.size() > 3 ? static_cast<int>(a(3)) : bytes);
        break;
      }
      case Op::kCommit: async_commit(); break;
      case Op::kWait: async_wait(static_cast<int>(a(0))); break;
      case Op::kGroupShow: group_mma_show(); break;
      case Op::kGroupBegin: group_mma_begin(); break;
      case Op::kGroupMma: {
        const bool known = (a(0) & ~uint64_t{0x3fff}) == kMatrix && (a(1) & ~uint64_t{0x3fff}) == kMatrix && a(2) == 1 && a(3) == 1 &&
                           a(4) == 1 && a(5) == 0 && a(6) == 0 && (!group_to || *group_to == in.to);
        if (!known) refuse("operands of wgmma that the interpreter does not know");
        for (size_t i = 0; i < in.to.size(); ++i) {
          uint64_t& sum = r[in.to[i]];
          if (!group_to) group_sums[i / 4][i % 4] = as<float>(sum);
          sum = kUnset;  // until the wait
        }
        group_to = &in.to;
        const auto matrix = [&](size_t i) { return address((a(i) & 0x3fff) << 4, Space::kShared); };
        group_mma(group_sums, matrix(0), matrix(1), static_cast<int>(in.to.size() * 2));
        break;
      }
      case Op::kGroupCommit: group_mma_commit(); break;
      case Op::kGroupWait:
        if (group_mma_wait(static_cast<int>(a(0))) > 0 || !group_to) break;
        for (size_t i = 0; i < group_to->size(); ++i) r[(*group_to)[i]] = bits_of(group_sums[i / 4][i % 4]);
        group_to = nullptr;
        break;
      case Op::kNothing: break;
      case Op::kUnknown: refuse("PTX that the interpreter does not know: " + in.name); return;
    }
  }
}

}  // namespace

struct PtxModule::Program {
  std::map<std::string, Entry> entries;
};

PtxModule::PtxModule(const std::string& text) : program_(std::make_unique<Program>()) {
  std::istringstream lines(text);
  std::string line, statement, name, place;
  std::map<std::string, std::string> files;
  Parser parser;
  int depth = 0;
  bool header = false;  // between .entry and its {
  while (std::getline(lines, line)) {
    line = line.substr(0, line.find("//"));
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    if (line.starts_with(".file")) {
      std::istringstream in(line);
      std::string word, number, path;
      in >> word >> number >> path;
      path = path.substr(0, path.rfind('"'));
      files[number] = path.substr(path.find_last_of("/\"") + 1);
      continue;
    }
    if (line.starts_with(".loc")) {
      std::istringstream in(line);
      std::string word, file, number;
      in >> word >> file >> number;
      if (const size_t inlined = line.find("inlined_at"); inlined != std::string::npos)
        std::istringstream(line.substr(inlined + 11)) >> file >> number;
      place = file + ":" + number;  // files are named at the end
      continue;
    }
    if (const size_t entry = line.find(".entry"); entry != std::string::npos) {
      parser = Parser();
      header = true;
      name = line.substr(entry + 7, line.find('(') - entry - 7);
      continue;
    }
    if (header && line.starts_with(".param")) {
      const size_t from = line.rfind(' ') + 1, to = line.find_first_of("[,", from);
      parser.params[line.substr(from, std::min(to, line.size()) - from)] = static_cast<int>(parser.entry.params++);
      continue;
    }
    if (line == "{") {
      ++depth;
      header = false;
      continue;
    }
    if (line == "}") {
      if (--depth == 0 && !name.empty()) {
        for (auto& [at, label] : parser.jumps) parser.entry.code[at].target = parser.labels.at(label);
        program_->entries[std::exchange(name, "")] = std::move(parser.entry);
      }
      continue;
    }
    if (depth == 0 || name.empty()) continue;  // name: not in a section of debug information
    if (line.back() == ':') {
      parser.labels[line.substr(0, line.size() - 1)] = parser.entry.code.size();
      continue;
    }
    statement += line + " ";
    if (line.back() != ';') continue;
    statement = statement.substr(0, statement.rfind(';'));
    if (statement.starts_with(".reg")) {
      const size_t percent = statement.find('%'), less = statement.find('<');
      const size_t n = std::stoul(statement.substr(less + 1));
      parser.registers[statement.substr(percent, less - percent)] = {parser.entry.registers, n};
      parser.entry.registers += n;
    } else if (statement[0] != '.') {
      parser.add(statement, place);
    }
    statement.clear();
  }
  for (auto& [entry_name, entry] : program_->entries)
    for (Instruction& in : entry.code) {
      const size_t colon = in.place.find(':');
      if (colon != std::string::npos) in.place = files[in.place.substr(0, colon)] + in.place.substr(colon) + " (PTX " + in.name + ")";
    }
}
PtxModule::~PtxModule() = default;
PtxModule::PtxModule(PtxModule&&) noexcept = default;
PtxModule& PtxModule::operator=(PtxModule&&) noexcept = default;

bool PtxModule::launch(const std::string& entry, Dim3 grid, Dim3 block, size_t shared_bytes,
                       std::vector<const void*> params) {
  const auto it = program_->entries.find(entry);
  if (it == program_->entries.end() || params.size() != it->second.params) return false;
  const Call call{&it->second, std::move(params)};
  run_grid(grid, block, shared_bytes, &call, sizeof call, run_thread);
  set_place(nullptr);
  return true;
}
PtxModule::Unreached PtxModule::unreached() const {
  Unreached out;
  for (const auto& [name, entry] : program_->entries) {
    if (entry.code.size() == 1) continue;  // only `ret`: a kernel for other capabilities
    for (const Instruction& in : entry.code) {
      if (in.reached) continue;
      const bool is_branch = in.op == Op::kBra && in.passed;
      (is_branch ? out.branches : out.instructions).push_back(name + " " + in.place);
    }
  }
  return out;
}

}  // namespace simt
