#include "cli/serve/native_dialect.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>

#include "cli/json_lines.h"
#include "cli/response_lines.h"
#include "cli/serve/request_fields.h"
#include "cli/steady_time.h"

namespace seer {
namespace {

constexpr std::string_view kRoot = "/seer/v1/rollouts";
constexpr const char* kLinesType = "application/x-ndjson";
constexpr size_t kLinesMax = 100'000;      // of a request
constexpr int64_t kSamples = 8;            // of a group that says no n, as in `seer rollout`
constexpr uint64_t kProgressSMax = 86'400;
constexpr int64_t kDeadlineSMax = int64_t{366} * 86'400;
constexpr size_t kNameMax = 128;
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

int status_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return 400;
    case Code::kNotFound: return 404;
    case Code::kStale: return 409;
    case Code::kFull: return 429;
    default: return 503;
  }
}
void refuse(const std::shared_ptr<HttpReply>& reply, const Error& error) {
  reply->send(status_of(error.code), http_error_body(error.detail, status_of(error.code)));
}

class HttpSink final : public LineSink {
 public:
  explicit HttpSink(std::shared_ptr<HttpReply> reply) : reply_(std::move(reply)) {}
  bool has_room() const override { return reply_->has_room(); }
  void write(std::string_view part) override { reply_->write(part); }
  void end() override { reply_->end(); }

 private:
  const std::shared_ptr<HttpReply> reply_;
};

/// "/seer/v1/rollouts/a/groups/7" -> {"a", "groups", "7"}
std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  path.remove_prefix(std::min(path.size(), kRoot.size() + 1));
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    parts.push_back(decode_percent(part));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
  }
  return parts;
}

Status check_name(const std::string& id) {
  if (!id.empty() && id.size() <= kNameMax && id.find_first_not_of(kNameCharacters) == std::string::npos) return {};
  return fail(Code::kInvalidArgument, "rollout_id is ", json_string(shown(id)), ": expected 1 to ", kNameMax,
              " letters, digits, dots, dashes and underscores");
}

/// The elements of a list, from its compact JSON text: "[{...},{...}]".
std::vector<std::string> elements_of(std::string_view list) {
  std::vector<std::string> elements;
  size_t begin = 1;
  int depth = 0;
  bool is_text = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (is_text) {
      if (c == '\\') ++i;
      is_text = c != '"';
      continue;
    }
    is_text = c == '"';
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if ((c == ',' && depth == 1) || depth == 0) {
      if (i > begin) elements.emplace_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return elements;
}

/// Lines of a body, from the one after `line` on.
struct Lines {
  std::string_view rest;
  int64_t line = 0;
  bool next(std::string& text) {
    if (rest.empty()) return false;
    const size_t end = rest.find('\n');
    text = std::string(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line;
    return true;
  }
};

/// Makes groups of prompt lines, as they will run, but for their seeds.
class GroupReader {
 public:
  GroupReader(PromptDefaults defaults, size_t responses_max, const ServedModel& model, const ChatPrompts* chat)
      : defaults_(std::move(defaults)), responses_max_(responses_max), model_(model), chat_(chat) {}

  Status take(PromptLines& reader, const std::string& name, int64_t line, std::string text) {
    SEER_ASSIGN_OR_RETURN(std::optional<PromptLine> prompt, reader.take(line, std::move(text)));
    if (!prompt) return {};
    if (groups.size() >= kLinesMax)
      return fail(Code::kInvalidArgument, "there are more than ", kLinesMax, " groups: send the rest in another request");
    const std::string found = cat(name, ":", line, ": ");
    responses_ += static_cast<size_t>(prompt->samples);
    if (responses_ > responses_max_)
      return fail(Code::kInvalidArgument, found, "the request asks for ", responses_, " responses up to here: expected at most ",
                  responses_max_);
    stop_bytes_ += stop_bytes(prompt->sampling);
    if (stop_bytes_ > kStopBytesMax)
      return fail(Code::kInvalidArgument, found, "the stops of all groups take ", stop_bytes_, " bytes up to here: expected at most ", kStopBytesMax);
    GatewayRequest fitted;
    SEER_ASSIGN_OR_RETURN(fitted.prompt_ids, prompt_ids_of(*prompt, {model_.name, model_.tokenizer.get(), chat_}, found));
    fitted.sampling = std::move(prompt->sampling);
    if (const Status fits = fit_request(fitted, model_); !fits.ok()) return fail(fits.error().code, found, fits.error().detail);
    ServedGroup group{.id = prompt->id,
                      .carried = prompt->carried,
                      .prompt_ids = std::move(fitted.prompt_ids),
                      .sampling = std::move(fitted.sampling),
                      .seeds = {},
                      .length_hint = prompt->length_hint};
    groups.push_back(std::move(group));
    seeds_.push_back({.id = std::move(prompt->id), .samples = prompt->samples, .sampling = {}, .seed = prompt->seed});
    return {};
  }
  Status take_lines(Lines lines) {
    PromptLines reader("body", defaults_);
    std::string text;
    while (lines.next(text)) SEER_RETURN_IF_ERROR(take(reader, "body", lines.line, std::move(text)));
    return {};
  }
  /// Their seeds depend on the number of the first group.
  void set_seeds(uint64_t run_seed, uint32_t first) {
    for (size_t g = 0; g < groups.size(); ++g)
      for (uint32_t sample = 0; sample < seeds_[g].samples; ++sample)
        groups[g].seeds.push_back(prompt_sample_seed(seeds_[g], run_seed, first + static_cast<uint32_t>(g), sample));
  }

  std::vector<ServedGroup> groups;

 private:
  PromptDefaults defaults_;
  size_t responses_max_;
  const ServedModel& model_;
  const ChatPrompts* chat_;
  size_t responses_ = 0;
  int64_t stop_bytes_ = 0;
  std::vector<PromptLine> seeds_;  // of each group what its seeds depend on
};

constexpr std::array<const char*, 4> kLogprobModeNames{"processed", "raw", "none", "kept"};  // by value

/// The first line of a request that makes a rollout.
struct FirstLine {
  ServedHead head;
  std::vector<std::string> groups;  // lines that it holds itself
  std::optional<std::string> expected_version;
};

Result<ServedStop> stop_of(const Json& value, const std::string& found) {
  ServedStop stop;
  if (!value.is_object() || value.empty())
    return fail(Code::kInvalidArgument, found, "stop_when is ", shown_value(value), ": expected an object of groups, samples or deadline_s");
  for (const auto& [name, number] : value.items()) {
    const std::string field = "stop_when." + name;
    if (name == "groups") {
      SEER_ASSIGN_OR_RETURN(stop.groups, integer_field<uint32_t>(number, field.c_str(), 1, found));
    } else if (name == "samples") {
      SEER_ASSIGN_OR_RETURN(stop.samples, integer_field<uint64_t>(number, field.c_str(), 1, found));
    } else if (name == "deadline_s") {
      SEER_ASSIGN_OR_RETURN(stop.deadline_s, integer_field<int64_t>(number, field.c_str(), 1, found));
      if (stop.deadline_s > kDeadlineSMax)
        return fail(Code::kInvalidArgument, found, field, " is ", stop.deadline_s, ": expected at most ", kDeadlineSMax);
    } else {
      return fail(Code::kInvalidArgument, found, "field ", shown(field), " is not known: expected groups, samples or deadline_s");
    }
  }
  return stop;
}

Status take_field(const JsonMember& member, PromptDefaults& defaults, FirstLine& first) {
  const auto& [name, text] = member;
  const std::string found = "body:1: ";
  if (name == "groups" && text.starts_with('[')) {
    first.groups = elements_of(text);
    return {};
  }
  SEER_ASSIGN_OR_RETURN(const Json value, field_value(text, found));
  ServedHead& head = first.head;
  if (name == "rollout_id") {
    if (!value.is_string()) return fail(Code::kInvalidArgument, found, "rollout_id is ", shown_value(value), ": expected text");
    head.id = value.get<std::string>();
    return check_name(head.id);
  }
  if (name == "open") {
    if (!value.is_boolean()) return fail(Code::kInvalidArgument, found, "open is ", shown_value(value), ": expected true or false");
    head.is_open = value.get<bool>();
  } else if (name == "seed") {
    SEER_ASSIGN_OR_RETURN(head.seed, integer_field<uint64_t>(value, "seed", 0, found));
  } else if (name == "priority") {
    SEER_ASSIGN_OR_RETURN(head.priority, integer_field<int32_t>(value, "priority", INT32_MIN, found));
  } else if (name == "defaults") {
    return read_prompt_defaults(text, found, defaults);
  } else if (name == "stop_when") {
    SEER_ASSIGN_OR_RETURN(head.stop, stop_of(value, found));
  } else if (name == "logprobs") {
    const auto mode = std::ranges::find(kLogprobModeNames, value);
    if (mode == kLogprobModeNames.end())
      return fail(Code::kInvalidArgument, found, "logprobs is ", shown_value(value), ": expected \"processed\", \"raw\", \"none\" or \"kept\"");
    defaults.sampling.logprob_mode = static_cast<LogprobMode>(mode - kLogprobModeNames.begin());
  } else if (name == "stream") {
    if (value != "sample" && value != "group")
      return fail(Code::kInvalidArgument, found, "stream is ", shown_value(value), ": expected \"sample\" or \"group\"");
    head.streams_groups = value == "group";
  } else if (name == "expect_weight_version") {
    first.expected_version = value.is_string() ? value.get<std::string>() : text;
  } else if (name == "groups") {
    return fail(Code::kInvalidArgument, found, "groups is ", shown_value(value), ": expected a list of objects");
  } else {
    return fail(Code::kInvalidArgument, found, "field ", shown(name),
                " is not known: expected rollout_id, open, seed, priority, defaults, logprobs, stop_when, stream, expect_weight_version or groups");
  }
  return {};
}

Result<FirstLine> read_first_line(std::string text, uint64_t seed) {
  FirstLine first;
  SEER_RETURN_IF_ERROR(check_line("body", 1, text));
  if (is_blank(text)) return fail(Code::kInvalidArgument, "body:1: the line is empty: expected {\"rollout_id\": ..., ...}");
  SEER_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members("body", 1, text));
  PromptDefaults defaults{.samples = kSamples, .sampling = {}};
  first.head.seed = seed;
  for (const JsonMember& member : members)
    if (member.text != "null") SEER_RETURN_IF_ERROR(take_field(member, defaults, first));
  first.head.samples = defaults.samples;
  first.head.sampling = std::move(defaults.sampling);
  return first;
}

/// A request that makes a rollout.
struct NewRollout {
  ServedHead head;
  std::optional<std::string> expected_version;
  GroupReader groups;
};

Result<NewRollout> read_new_rollout(const std::string& body, size_t responses_max, const ServedModel& model, const ChatPrompts* chat) {
  Lines lines{.rest = body};
  std::string text;
  lines.next(text);
  SEER_ASSIGN_OR_RETURN(FirstLine first, read_first_line(std::move(text), model.seed));
  first.head.request = hash_bytes(body);
  const PromptDefaults defaults{.samples = first.head.samples, .sampling = first.head.sampling};
  NewRollout rollout{.head = std::move(first.head), .expected_version = std::move(first.expected_version), .groups = {defaults, responses_max, model, chat}};
  PromptLines own("groups", defaults);
  int64_t number = 0;
  for (const std::string& group : first.groups) SEER_RETURN_IF_ERROR(rollout.groups.take(own, "groups", ++number, group));
  SEER_RETURN_IF_ERROR(rollout.groups.take_lines(lines));
  return rollout;
}

std::string without_newline(std::string line) {
  line.pop_back();
  return line;
}

}  // namespace

NativeDialect::NativeDialect(Front& front, std::shared_ptr<const ChatPrompts> chat, ServedRollouts& rollouts, EventLog log)
    : front_(front), chat_(std::move(chat)), rollouts_(rollouts), log_(std::move(log)), first_version_(front.version()) {}

bool NativeDialect::handle(HttpRequest& request, const Reply& reply) {
  if (!request.path.starts_with(kRoot) || (request.path.size() > kRoot.size() && request.path[kRoot.size()] != '/')) return false;
  const std::vector<std::string> parts = parts_of(request.path);
  const bool is_get = request.method == "GET", is_post = request.method == "POST", is_delete = request.method == "DELETE";
  const std::string what = parts.size() > 1 ? parts[1] : "";
  if (parts.empty() && is_post) create(request, reply);
  else if (parts.empty() && is_get) list(reply);
  else if (parts.size() == 1 && is_get) attach(request, parts[0], reply);
  else if (parts.size() == 1 && is_delete) remove(request, parts[0], reply);
  else if (parts.size() == 2 && is_get && what == "progress") answer(parts[0], {}, reply);
  else if (parts.size() == 2 && is_post && what == "groups") add(request, parts[0], reply);
  else if (parts.size() == 2 && is_post && (what == "close" || what == "finish")) answer(parts[0], rollouts_.close(parts[0]), reply);
  else if (parts.size() == 2 && is_post && what == "ack") acknowledge(request, parts[0], reply);
  else if (parts.size() == 3 && is_delete && what == "groups") cancel_group(parts[0], parts[2], reply);
  else return false;
  return true;
}

// ---- requests of clients -------------------------------------------------------------------------------------------------------

void NativeDialect::create(HttpRequest& request, const Reply& reply) {
  const Result<StreamOptions> options = read_stream_options(request);
  if (!options.ok()) return refuse(reply, options.error());
  front_.read_body(
      request,
      [most = rollouts_.limits().responses_max, &model = front_.model(), chat = chat_](const std::string& body) {
        return read_new_rollout(body, most, model, chat.get());
      },
      [this, options = *options, reply](Result<NewRollout> rollout) {
        if (!rollout.ok()) return refuse(reply, rollout.error());
        rollout->groups.set_seeds(rollout->head.seed, 0);
        begin(std::move(rollout->head), rollout->expected_version, std::move(rollout->groups.groups), options, reply);
      });
}

void NativeDialect::begin(ServedHead head, const std::optional<std::string>& expected_version, std::vector<ServedGroup> groups,
                          const StreamOptions& options, const Reply& reply) {
  if (const ServedHead* const known = rollouts_.find(head.id); known != nullptr) {
    if (known->request == head.request) return stream(head.id, options, true, reply);
    return refuse(reply, fail(Code::kStale, "there is a rollout ", json_string(head.id), " already, made by another request"));
  }
  if (const std::string runs = front_.version_label(front_.version()); expected_version && *expected_version != runs)
    return refuse(reply, fail(Code::kStale, "body:1: expect_weight_version is ", shown(*expected_version), ", and version ", runs, " runs"));
  if (expected_version) head.expected_label = *expected_version, head.expected_version = front_.version();
  if (options.from_seq.value_or(1) > 1)
    return refuse(reply,
                  fail(Code::kInvalidArgument, "from_seq is ", *options.from_seq, ": expected 1, since the rollout is not there yet"));
  while (head.id.empty() || rollouts_.find(head.id) != nullptr) head.id = cat("rollout-", ++last_name_);
  if (groups.empty() && !head.is_open)
    return refuse(reply, fail(Code::kInvalidArgument, "the rollout has no groups: expected some, or \"open\": true"));
  Result<std::vector<ServedWork>> work = rollouts_.create(head, std::move(groups));
  if (!work.ok()) return refuse(reply, work.error());
  run(*std::move(work));
  stream(head.id, options, true, reply);
}

void NativeDialect::list(const Reply& reply) {
  std::string out = "{\"rollouts\":[";
  for (const ServedState& state : rollouts_.states())
    out += cat(out.ends_with('[') ? "" : ",", without_newline(served_state_line(state.is_over ? "done" : "progress", state)));
  reply->send(200, cat(out, "]}"));
}

Result<NativeDialect::StreamOptions> NativeDialect::read_stream_options(const HttpRequest& request) {
  StreamOptions options;
  SEER_RETURN_IF_ERROR(check_query(request, {"from_seq", "progress_s"}));
  SEER_ASSIGN_OR_RETURN(options.from_seq, query_number(request, "from_seq", 1));
  SEER_ASSIGN_OR_RETURN(const std::optional<uint64_t> progress_s, query_number(request, "progress_s", 1, kProgressSMax));
  options.progress_us = static_cast<int64_t>(progress_s.value_or(0)) * 1'000'000;
  return options;
}

void NativeDialect::attach(const HttpRequest& request, const std::string& id, const Reply& reply) {
  const Result<StreamOptions> options = read_stream_options(request);
  if (!options.ok()) return refuse(reply, options.error());
  stream(id, *options, false, reply);
}

void NativeDialect::stream(const std::string& id, const StreamOptions& options, bool is_accepted, const Reply& reply) {
  const Result<uint64_t> stream = rollouts_.subscribe(id, options.from_seq, std::make_shared<HttpSink>(reply), options.progress_us);
  if (!stream.ok()) return refuse(reply, stream.error());
  reply->on_gone([this, number = *stream] { rollouts_.unsubscribe(number); });
  reply->on_room([this, number = *stream] { rollouts_.pump(number); });
  reply->begin(kLinesType);
  if (is_accepted) reply->write(served_state_line("accepted", rollouts_.state(id).value()));
  rollouts_.pump(*stream);
}

void NativeDialect::add(HttpRequest& request, const std::string& id, const Reply& reply) {
  const ServedHead* const head = rollouts_.find(id);
  if (head == nullptr) return answer(id, {}, reply);
  if (const Status names = check_query(request, {"first_group"}); !names.ok()) return refuse(reply, names.error());
  const auto first = query_number(request, "first_group", 0, UINT32_MAX);
  if (!first.ok()) return refuse(reply, first.error());
  GroupReader reader({.samples = head->samples, .sampling = head->sampling}, rollouts_.limits().responses_max, front_.model(), chat_.get());
  front_.read_body(
      request,
      [reader = std::move(reader), chat = chat_](const std::string& body) mutable -> Result<GroupReader> {
        SEER_RETURN_IF_ERROR(reader.take_lines({.rest = body}));
        return std::move(reader);
      },
      [this, id, first = *first, reply](Result<GroupReader> groups) {
        if (!groups.ok()) return refuse(reply, groups.error());
        const ServedHead* const now = rollouts_.find(id);
        if (now == nullptr) return answer(id, {}, reply);
        const auto next = static_cast<uint32_t>(rollouts_.state(id)->groups);
        groups->set_seeds(now->seed, static_cast<uint32_t>(std::min<uint64_t>(first.value_or(next), next)));
        add_groups(id, std::move(groups->groups), first.value_or(next), first, reply);
      });
}

void NativeDialect::add_groups(const std::string& id, std::vector<ServedGroup> groups, uint64_t begin, std::optional<uint64_t> first,
                               const Reply& reply) {
  if (groups.empty()) return refuse(reply, fail(Code::kInvalidArgument, "the body has no groups: expected a prompt line for each"));
  const size_t count = groups.size();
  Result<std::vector<ServedWork>> work = rollouts_.add(id, std::move(groups), first);
  if (!work.ok()) return refuse(reply, work.error());
  run(*std::move(work));
  reply->send(200, json_text({{"rollout_id", id}, {"first_group", begin}, {"groups", count}}));
}

void NativeDialect::acknowledge(const HttpRequest& request, const std::string& id, const Reply& reply) {
  const Result<Json> body = read_object(request.body);
  if (!body.ok()) return refuse(reply, body.error());
  for (const auto& [name, value] : body->items())
    if (name != "seq") return refuse(reply, fail(Code::kInvalidArgument, "field ", json_string(shown(name)), " is not known: expected seq"));
  const Json* const seq = given_field(*body, "seq");
  if (seq == nullptr)
    return refuse(reply, fail(Code::kInvalidArgument, "seq is missing: expected that of the last response that is not needed any more"));
  const Result<uint64_t> number = integer_field<uint64_t>(*seq, "seq", 0, "");
  if (!number.ok()) return refuse(reply, number.error());
  answer(id, rollouts_.acknowledge(id, *number), reply);
}

void NativeDialect::cancel_group(const std::string& id, const std::string& name, const Reply& reply) {
  const Result<uint32_t> group = rollouts_.find_group(id, name);
  if (!group.ok()) return refuse(reply, group.error());
  const uint64_t rollout = rollouts_.find(id)->number;
  if (const auto at = tickets_.find({rollout, *group}); at != tickets_.end())
    front_.abort({at->second});
  else if (!abort_waiting(rollout, *group))
    return refuse(reply, fail(Code::kStale, "group ", json_string(shown(name)), " is over"));
  answer(id, {}, reply);
}

void NativeDialect::remove(const HttpRequest& request, const std::string& id, const Reply& reply) {
  if (const Status names = check_query(request, {"on_cancel"}); !names.ok()) return refuse(reply, names.error());
  const auto how = request.query.find("on_cancel");
  const std::string on_cancel = how == request.query.end() ? "drop" : how->second;
  if (on_cancel != "drop" && on_cancel != "return_partial")
    return refuse(reply, fail(Code::kInvalidArgument, "on_cancel is ", json_string(shown(on_cancel)), ": expected drop or return_partial"));
  const ServedHead* const head = rollouts_.find(id);
  if (head == nullptr) return answer(id, {}, reply);
  const std::vector<Ticket> tickets = tickets_of(head->number);
  if (on_cancel == "return_partial") {
    front_.abort({tickets.begin(), tickets.end()});
    abort_waiting(head->number);
    return answer(id, rollouts_.close(id), reply);
  }
  const ServedState state = rollouts_.state(id).value();
  front_.cancel(tickets);
  waiting_.erase(head->number);
  std::erase_if(tickets_, [&](const auto& entry) { return entry.first.first == head->number; });
  (void)rollouts_.forget(id);
  reply->send(200, without_newline(served_state_line("deleted", state)));
}

void NativeDialect::answer(const std::string& id, const Status& done, const Reply& reply) {
  if (!done.ok()) return refuse(reply, done.error());
  const Result<ServedState> state = rollouts_.state(id);
  if (!state.ok()) return refuse(reply, state.error());
  reply->send(200, without_newline(served_state_line(state->is_over ? "done" : "progress", *state)));
}

// ---- what runs -----------------------------------------------------------------------------------------------------------------

void NativeDialect::resume(std::vector<ServedWork> work, WeightVersion version) {
  for (auto first = work.begin(); first != work.end();) {
    const auto end = std::find_if(first, work.end(), [&](const ServedWork& group) { return group.rollout != first->rollout; });
    run({std::make_move_iterator(first), std::make_move_iterator(end)}, version);
    first = end;
  }
}

RunningWeights NativeDialect::weights() const {
  const WeightVersion version = front_.version();
  const bool is_first = version == first_version_;
  return {.version = version, .name = front_.version_name(version), .is_first = is_first, .were_marked = is_first && rollouts_.had_same_weights()};
}

void NativeDialect::run(std::vector<ServedWork> work, WeightVersion version) {
  if (work.empty()) return;
  const ServedHead& head = rollouts_.head(work.front().rollout);
  const Turn turn = turn_of(head, weights());
  if (turn == Turn::kRuns) return begin_groups(std::move(work), version);
  if (turn == Turn::kWaits) return wait(head.number, std::move(work));
  const std::string error = cat("the rollout expects weight version ", shown(head.expected_label), ", and version ",
                                front_.version_label(front_.version()), " runs");
  log_.warn(steady_us(), "rollout_unmade", {{"rollout_id", head.id}, {"groups", work.size()}, {"error", error}});
  end_unmade(work, FinishReason::kError, error);
}

void NativeDialect::wait(uint64_t rollout, std::vector<ServedWork> work) {
  const ServedHead& head = rollouts_.head(rollout);
  log_.warn(steady_us(), "rollout_waits", {{"rollout_id", head.id}, {"groups", work.size()}, {"for_version", shown(head.expected_label)},
                                           {"weight_version", front_.version_label(front_.version())}});
  for (ServedWork& group : work) {
    group.begun.clear();  // of other weights
    waiting_[rollout].push_back(std::move(group));
  }
  rollouts_.set_waits(rollout, true);
}

void NativeDialect::run_waiting() {
  if (waiting_.empty() || front_.is_updating()) return;  // other weights may run before the groups begin
  std::vector<uint64_t> ready;
  for (const auto& [rollout, groups] : waiting_)
    if (turn_of(rollouts_.head(rollout), weights()) != Turn::kWaits) ready.push_back(rollout);
  for (const uint64_t rollout : ready) {
    rollouts_.set_waits(rollout, false);
    run(std::move(waiting_.extract(rollout).mapped()));
  }
}

bool NativeDialect::abort_waiting(uint64_t rollout, std::optional<uint32_t> group) {
  const auto at = waiting_.find(rollout);
  if (at == waiting_.end()) return false;
  std::vector<ServedWork>& groups = at->second;
  const auto kept = std::stable_partition(groups.begin(), groups.end(), [&](const ServedWork& work) { return group && work.group != *group; });
  const std::vector<ServedWork> ended(std::make_move_iterator(kept), std::make_move_iterator(groups.end()));
  groups.erase(kept, groups.end());
  if (groups.empty()) {
    waiting_.erase(at);
    rollouts_.set_waits(rollout, false);
  }
  end_unmade(ended, FinishReason::kAborted);
  return !ended.empty();
}

void NativeDialect::end_unmade(const std::vector<ServedWork>& work, FinishReason finish, const std::string& error) {
  for (const ServedWork& group : work) {
    const std::vector<uint64_t> seeds = rollouts_.group(group.rollout, group.group)->seeds;
    for (uint32_t i = 0; i < group.samples.size(); ++i) {
      Response response;
      response.seed = seeds[group.samples[i]];
      response.finish = finish;
      response.error = error;
      response.version = front_.version();
      give(group, i, response);
    }
  }
}

void NativeDialect::begin_groups(std::vector<ServedWork> work, WeightVersion version) {
  const ServedHead& head = rollouts_.head(work.front().rollout);
  Call call{.requests = {}, .outlives_server = rollouts_.has_journal()};
  for (ServedWork& group : work) {
    const ServedGroup& spec = *rollouts_.group(group.rollout, group.group);
    GatewayRequest request{.ticket = {},
                           .rid = head.id,
                           .group = cat("rollout ", group.rollout, " group ", group.group),
                           .group_size = static_cast<uint32_t>(group.samples.size()),
                           .prompt_ids = spec.prompt_ids,
                           .sampling = spec.sampling,
                           .seeds = {},
                           .priority = head.priority,
                           .version = head.expected_label.empty() ? std::nullopt : std::optional(front_.version()),
                           .tokens_to = rollouts_.has_journal() ? TokensTo::kJournal : TokensTo::kNobody,
                           .length_hint = spec.length_hint};
    for (const uint32_t sample : group.samples) request.seeds.push_back(spec.seeds[sample]);
    if (!group.begun.empty()) request.begun.resize(group.samples.size());
    for (CommittedTokens& part : group.begun) {
      const auto at = std::ranges::find(group.samples, part.request.sample) - group.samples.begin();
      request.begun[static_cast<size_t>(at)] = {std::move(part.output), version};
    }
    group.begun.clear();
    call.requests.push_back(std::move(request));
  }
  const auto groups = std::make_shared<const std::vector<ServedWork>>(std::move(work));
  call.tokens = [this, groups](size_t i, uint32_t sample, const CommittedTokens& part, WeightVersion made_by) {
    const ServedWork& group = (*groups)[i];
    CommittedTokens named = part;
    named.request = {GroupId{group.group}, group.samples[sample]};
    rollouts_.commit(group.rollout, named, made_by);
  };
  call.response = [this, groups](size_t i, uint32_t sample, const Response& response) { on_response((*groups)[i], sample, response); };
  const std::vector<Ticket> tickets = front_.run(std::move(call));
  for (size_t i = 0; i < tickets.size(); ++i) tickets_[{(*groups)[i].rollout, (*groups)[i].group}] = tickets[i];
}

void NativeDialect::on_response(const ServedWork& work, uint32_t sample, const Response& response) {
  give(work, sample, response);
  if (now_us_ >= 0) tick(now_us_);  // else the time that a rollout has would count from 0
}

void NativeDialect::give(const ServedWork& work, uint32_t sample, const Response& given) {
  const ServedGroup* const spec = rollouts_.group(work.rollout, work.group);
  if (spec == nullptr) return;
  Response response = given;
  response.request = {GroupId{work.group}, work.samples[sample]};
  const std::string line = response_line_of(response, {spec->id, spec->prompt_ids, spec->carried}, front_.model().tokenizer.get(),
                                            front_.version_name(response.version));
  rollouts_.finish(work.rollout,
                   {.group = work.group,
                    .sample = response.request.sample,
                    .finish = response.finish,
                    .output_tokens = std::ssize(response.output.ids),
                    .version = response.version,
                    .line = {}},
                   line);
  if (rollouts_.group(work.rollout, work.group) == nullptr) tickets_.erase({work.rollout, work.group});
}

void NativeDialect::tick(int64_t now_us) {
  now_us_ = now_us;
  for (const uint64_t rollout : rollouts_.take_stopped(now_us)) {
    const std::vector<Ticket> tickets = tickets_of(rollout);
    front_.abort({tickets.begin(), tickets.end()});
    abort_waiting(rollout);
  }
  run_waiting();
}

std::vector<Ticket> NativeDialect::tickets_of(uint64_t rollout) const {
  std::vector<Ticket> tickets;
  for (auto at = tickets_.lower_bound({rollout, 0}); at != tickets_.end() && at->first.first == rollout; ++at)
    tickets.push_back(at->second);
  return tickets;
}

}  // namespace seer
