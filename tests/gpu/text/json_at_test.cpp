#include "gpu/text/json_at.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace seer {
namespace {

const nlohmann::json kFile = nlohmann::json::parse(
    R"({"name": "x", "size": 7, "half": 0.5, "flag": true, "none": null, "list": [{"id": 1}, {"id": "two"}]})");

JsonAt root() { return {kFile, "/m/file.json"}; }

TEST_CASE("json at: an error names the file and the whole path of the field, with indexes") {
  const JsonAt id = root().at("list").elements().at(1).at("id");
  CHECK(id.integer().error().detail == "/m/file.json: list[1].id must be a whole number");
  CHECK(id.integer().error().code == Code::kInvalidArgument);
  CHECK(root().at("size").text().error().detail == "/m/file.json: size must be a string");
  CHECK(root().at("half").integer().error().detail == "/m/file.json: half must be a whole number");
  CHECK(root().at("name").flag_or(true).error().detail == "/m/file.json: name must be true or false");
  CHECK(root().wrong("is odd: ", 3).detail == "/m/file.json: the document is odd: 3");
}

TEST_CASE("json at: gives the values as they are") {
  CHECK(*root().at("name").text() == "x");
  CHECK(*root().at("name").text_or("y") == "x");
  CHECK(*root().at("size").integer() == 7);
  CHECK(*root().at("flag").flag_or(false));
  REQUIRE(root().at("list").is_array());
  CHECK(*root().at("list").elements().at(0).at("id").integer() == 1);
  CHECK(root().is_object());
}

TEST_CASE("json at: a missing field is null at any depth, and only the calls with a default accept it") {
  for (const JsonAt& field : {root().at("gone"), root().at("none"), root().at("gone").at("below"), root().at("name").at("x"),
                              root().at("list").at("id")}) {
    CAPTURE(field.wrong("").detail);
    CHECK(field.is_null());
    CHECK(*field.text_or("y") == "y");
    CHECK(*field.flag_or(true));
    CHECK_FALSE(field.text().ok());
    CHECK_FALSE(field.integer().ok());
    CHECK(field.elements().empty());
  }
  CHECK(root().at("gone").at("below").text().error().detail == "/m/file.json: gone.below must be a string");
  CHECK(root().elements().empty());  // an object is no array
}

}  // namespace
}  // namespace seer
