#include "protocols/fields.h"

#include <doctest/doctest.h>

#include <string>

using namespace seer;

namespace {

struct Listed {
  int first = 1;
  std::string second = "two";
  double hidden = 3;  // not in the list
  SEER_FIELDS(Listed, first, second)
};
struct Unlisted {
  int first = 1;
};

static_assert(HasFields<Listed>);
static_assert(!HasFields<Unlisted>);

}  // namespace

TEST_CASE("fields: listed fields are visited together, in order, and can be changed unless const") {
  Listed value;
  CHECK(std::string(Listed::kTypeName) == "Listed");
  value.visit_fields([](int& first, std::string& second) {
    first += 10;
    second += "!";
  });
  CHECK(value.hidden == 3);
  const Listed& constant = value;
  const auto text = constant.visit_fields([](const int& first, const std::string& second) { return std::to_string(first) + second; });
  CHECK(text == "11two!");
}
