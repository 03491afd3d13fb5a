// One HTTP question and its answer, as far as the dialects care.
#pragma once
#include <string>

namespace seer {

struct HttpAsk {
  std::string method = "GET";
  std::string target;     // "/v1/models"
  std::string body = {};  // JSON; empty: none
};
struct HttpAnswer {
  int status = 0;  // 0: none came, and the body is a sentence that says why
  std::string body;
};

}  // namespace seer
