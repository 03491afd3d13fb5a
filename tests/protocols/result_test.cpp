#include <doctest/doctest.h>

#include <memory>
#include <sstream>

#include "protocols/result.h"

using namespace seer;

namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return fail(Code::kInvalidArgument, x, " is odd");
  return x / 2;
}
Status even(int x) {
  SEER_RETURN_IF_ERROR(half(x));
  return {};
}
Result<int> quarter(int x) {
  SEER_ASSIGN_OR_RETURN(const int a, half(x));
  SEER_ASSIGN_OR_RETURN(const int b, half(a));
  return b;
}
Result<std::unique_ptr<int>> boxed(int x) {
  std::unique_ptr<int> box;
  SEER_ASSIGN_OR_RETURN(int value, half(x));
  box = std::make_unique<int>(value);
  return box;
}

}  // namespace

TEST_CASE("result: holds a value or an error, never both") {
  CHECK(half(8).ok());
  CHECK(*half(8) == 4);
  CHECK_FALSE(half(7).ok());
  CHECK(half(7).error().code == Code::kInvalidArgument);
  CHECK(half(7).error().detail == "7 is odd");
  CHECK(Status{}.ok());
  CHECK_FALSE(Status(fail(Code::kIo, "x")).ok());
}

TEST_CASE("result: the macros return the first error, and go on otherwise") {
  CHECK(even(4).ok());
  CHECK(even(5).error().detail == "5 is odd");
  CHECK(*quarter(8) == 2);
  CHECK(quarter(6).error().detail == "3 is odd");
  CHECK(quarter(5).error().detail == "5 is odd");
}

TEST_CASE("result: a value that can only move is moved out") {
  auto box = boxed(6);
  REQUIRE(box.ok());
  std::unique_ptr<int> taken = *std::move(box);
  CHECK(*taken == 3);
}

TEST_CASE("result: every code has a name of its own, and an error prints it with its detail") {
  std::string names;
  for (int c = 1; c <= 8; ++c) {
    const std::string name = to_string(static_cast<Code>(c));
    CHECK(name != "unknown");
    CHECK(names.find(name) == std::string::npos);
    names += name + " ";
  }
  std::ostringstream out;
  out << fail(Code::kFull, "no room for ", 3);
  CHECK(out.str() == "full: no room for 3");
}
