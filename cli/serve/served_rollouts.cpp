#include "cli/serve/served_rollouts.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "cli/json_lines.h"
#include "protocols/hash.h"
#include "storage/record_bytes.h"

namespace seer {
namespace {

constexpr size_t kPartBytes = 256 << 10;  // of a line, written at once
constexpr size_t kGivenBytes = 80;        // bookkeeping of a response, about

size_t bytes_of(const ServedGroup& group) {
  size_t stops = group.sampling.stop_token_ids.size() * sizeof(int32_t);
  for (const std::string& stop : group.sampling.stop) stops += sizeof stop + stop.size();
  return group.prompt_ids.size() * sizeof(int32_t) + group.carried.size() + stops + group.seeds.size() * (sizeof(uint64_t) + kGivenBytes);
}

uint64_t hash_of(const ServedGroup& group) { return hash_bytes(record_bytes(group)); }

Error not_written(const Status& failed) {
  return fail(Code::kUnavailable, "the journal cannot be written, so no groups are taken in: ", failed.error().detail);
}

Error no_rollout(const std::string& id) { return fail(Code::kNotFound, "there is no rollout ", json_string(shown(id))); }

}  // namespace

std::string served_state_line(const char* type, const ServedState& s) {
  return cat("{\"type\":\"", type, "\",\"rollout_id\":", json_string(s.id), ",\"open\":", s.is_open ? "true" : "false",
             ",\"stopped\":", s.is_stopped ? "true" : "false", ",\"groups\":", s.groups, ",\"responses\":", s.responses, ",\"given\":", s.given, ",\"aborted\":", s.aborted,
             ",\"failed\":", s.failed, ",\"output_tokens\":", s.output_tokens, ",\"acknowledged\":", s.acknowledged,
             s.waits_for.empty() ? "" : ",\"waits_for_version\":" + json_string(s.waits_for), "}\n");
}

Turn turn_of(const ServedHead& head, const RunningWeights& now) {
  if (head.expected_label.empty()) return Turn::kRuns;
  if (now.were_marked && now.version == head.expected_version) return Turn::kRuns;
  const bool is_name = head.expected_label != cat(head.expected_version);
  const bool has_same_label = head.expected_label == (now.name.empty() ? cat(now.version) : now.name);
  // A trainer may have called its own weights "1" that were version 2 here; those of the start are version 1 to nobody but us.
  if (has_same_label && !(is_name && now.is_first && now.name.empty())) return Turn::kRuns;
  return (is_name ? now.is_first : now.version < head.expected_version) ? Turn::kWaits : Turn::kIsOver;
}

ServedRollouts::ServedRollouts(ServedLimits limits, std::unique_ptr<ServedJournal> journal)
    : limits_(limits), journal_(std::move(journal)) {}

Result<std::vector<ServedWork>> ServedRollouts::restore() {
  std::vector<ServedWork> all;
  SEER_ASSIGN_OR_RETURN(ServedContents had, journal_.read());
  had_same_weights_ = had.has_same_weights;
  for (ServedContents::Rollout& from : had.rollouts) {
    const uint64_t number = last_number_ = from.head.number;
    Rollout& rollout = rollouts_[number];
    number_of_[from.head.id] = number;
    rollout.head = std::move(from.head);
    take_in(rollout, std::move(from.groups));
    for (ServedResponse& response : from.responses) take_in_response(rollout, std::move(response));
    std::map<uint32_t, std::vector<CommittedTokens>> begun;  // by group
    for (CommittedTokens& part : from.begun) {
      const bool is_over = rollout.groups[part.request.group.index].is_given[part.request.sample];
      if (!is_over) begun[part.request.group.index].push_back(std::move(part));
    }
    for (uint32_t g = 0; g < rollout.groups.size(); ++g) {
      if (rollout.groups[g].left == 0) continue;
      ServedWork& work = all.emplace_back(ServedWork{.rollout = number, .group = g, .samples = {}, .begun = std::move(begun[g])});
      for (uint32_t sample = 0; sample < rollout.groups[g].is_given.size(); ++sample)
        if (!rollout.groups[g].is_given[sample]) work.samples.push_back(sample);
    }
  }
  return all;
}

// ---- clients -------------------------------------------------------------------------------------------------------------------

ServedRollouts::Rollout* ServedRollouts::rollout_of(const std::string& id) {
  const auto at = number_of_.find(id);
  return at == number_of_.end() ? nullptr : &rollouts_.at(at->second);
}
const ServedRollouts::Rollout* ServedRollouts::rollout_of(const std::string& id) const {
  const auto at = number_of_.find(id);
  return at == number_of_.end() ? nullptr : &rollouts_.at(at->second);
}

const ServedHead* ServedRollouts::find(const std::string& id) const {
  const Rollout* const rollout = rollout_of(id);
  return rollout == nullptr ? nullptr : &rollout->head;
}

/// Forgets rollouts that are over and were sent, the oldest first, until there is room for so much more.
Status ServedRollouts::make_room(size_t bytes, size_t rollouts) {
  const auto is_spare = [](const auto& entry) { return entry.second.is_over() && entry.second.is_delivered; };
  while (bytes_ + bytes > limits_.bytes_max || rollouts_.size() + rollouts > limits_.rollouts_max) {
    const auto oldest = std::ranges::find_if(rollouts_, is_spare);
    if (oldest != rollouts_.end()) {
      erase(oldest->first);
    } else if (bytes_ + bytes > limits_.bytes_max) {
      return fail(Code::kFull, "there is no room for it: the server keeps ", bytes_ >> 20,
                  " MiB of prompts and responses, and its limit is ", limits_.bytes_max >> 20,
                  " MiB; acknowledge responses, or delete rollouts");
    } else {
      return fail(Code::kFull, "there are ", rollouts_.size(), " rollouts, which is the limit: delete one first");
    }
  }
  return {};
}

Status ServedRollouts::check_new(const Rollout& rollout, const std::vector<ServedGroup>& groups) const {
  uint64_t responses = open_responses_;
  std::set<std::string_view> ids;
  for (const ServedGroup& group : groups) {
    responses += group.seeds.size();
    if (group.id.empty()) continue;
    if (const auto known = rollout.group_of_id.find(group.id); known != rollout.group_of_id.end())
      return fail(Code::kStale, "id ", shown(group.id), " is that of group ", known->second, " already");
    if (!ids.insert(group.id).second) return fail(Code::kInvalidArgument, "id ", shown(group.id), " is given twice");
  }
  if (responses <= limits_.responses_max) return {};
  return fail(Code::kFull, "the server would have ", responses, " responses to make for rollouts: expected at most ",
              limits_.responses_max);
}

Result<std::vector<ServedWork>> ServedRollouts::create(ServedHead head, std::vector<ServedGroup> groups) {
  SEER_CHECK(!number_of_.contains(head.id), head.id);
  size_t bytes = 0;
  for (const ServedGroup& group : groups) bytes += bytes_of(group);
  SEER_RETURN_IF_ERROR(check_new({}, groups));
  SEER_RETURN_IF_ERROR(make_room(bytes, 1));
  head.number = last_number_ + 1;
  SEER_RETURN_IF_ERROR(mend_journal());
  if (const Status created = journal_.create(head, groups); !created.ok()) return not_written(created);
  number_of_[head.id] = last_number_ = head.number;
  Rollout& rollout = rollouts_[head.number];
  rollout.head = std::move(head);
  return take_in(rollout, std::move(groups));
}

Result<std::vector<ServedWork>> ServedRollouts::add(const std::string& id, std::vector<ServedGroup> groups, std::optional<uint64_t> first) {
  Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  if (const uint64_t next = rollout->groups.size(); first && *first != next) {
    const auto begin = rollout->groups.begin() + static_cast<std::ptrdiff_t>(std::min(*first, next));
    const auto end = begin + std::min(std::ssize(groups), rollout->groups.end() - begin);
    if (std::ranges::equal(groups.begin(), groups.end(), begin, end, {}, hash_of, &Group::hash)) return std::vector<ServedWork>();
    return fail(Code::kStale, "first_group is ", *first, ": expected ", next, ", the number of the next group");
  }
  if (!rollout->head.is_open) return fail(Code::kStale, "the rollout is closed: no groups can be added");
  SEER_RETURN_IF_ERROR(check_new(*rollout, groups));
  size_t bytes = 0;
  for (const ServedGroup& group : groups) bytes += bytes_of(group);
  SEER_RETURN_IF_ERROR(make_room(bytes, 0));  // this one is not over, so it stays
  SEER_RETURN_IF_ERROR(mend_journal());
  const auto index = static_cast<uint32_t>(rollout->groups.size());
  if (const Status added = journal_.add(rollout->head, index, groups); !added.ok()) return not_written(added);
  return take_in(*rollout, std::move(groups));
}

std::vector<ServedWork> ServedRollouts::take_in(Rollout& rollout, std::vector<ServedGroup> groups) {
  std::vector<ServedWork> all;
  for (ServedGroup& spec : groups) {
    const auto index = static_cast<uint32_t>(rollout.groups.size());
    if (!spec.id.empty()) rollout.group_of_id[spec.id] = index;
    const auto samples = static_cast<uint32_t>(spec.seeds.size());
    rollout.bytes += bytes_of(spec);
    bytes_ += bytes_of(spec);
    rollout.state.responses += samples;
    open_responses_ += samples;
    ServedWork& work = all.emplace_back(ServedWork{.rollout = rollout.head.number, .group = index, .samples = {}, .begun = {}});
    for (uint32_t sample = 0; sample < samples; ++sample) work.samples.push_back(sample);
    const uint64_t hash = hash_of(spec);
    rollout.groups.push_back({.spec = std::move(spec), .is_given = std::vector<bool>(samples), .left = samples, .hash = hash});
  }
  return all;
}

Status ServedRollouts::close(const std::string& id) {
  Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  if (!std::exchange(rollout->head.is_open, false)) return {};
  journal_.put(rollout->head);
  pump_all(rollout->head.number);
  return {};
}

Status ServedRollouts::acknowledge(const std::string& id, uint64_t seq) {
  Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  if (seq > rollout->state.given)
    return fail(Code::kInvalidArgument, "seq is ", seq, ": expected at most ", rollout->state.given, ", the last response that was given");
  if (seq <= rollout->head.acknowledged) return {};
  const auto count = static_cast<ptrdiff_t>(seq - rollout->head.acknowledged);
  const auto first = rollout->given.begin() + static_cast<ptrdiff_t>(rollout->head.acknowledged);
  rollout->head.acknowledged = seq;
  for (auto line = rollout->lines.begin(); line != rollout->lines.begin() + count; ++line) {
    rollout->bytes -= (*line)->size();
    bytes_ -= (*line)->size();
  }
  rollout->lines.erase(rollout->lines.begin(), rollout->lines.begin() + count);
  journal_.acknowledge(rollout->head, {first, first + count});
  return {};
}

Result<uint64_t> ServedRollouts::forget(const std::string& id) {
  const auto at = number_of_.find(id);
  if (at == number_of_.end()) return no_rollout(id);
  const uint64_t number = at->second;
  erase(number);
  return number;
}

void ServedRollouts::erase(uint64_t number) {
  const std::string id = rollouts_.at(number).head.id;
  std::vector<uint64_t> ended;
  for (const auto& [stream, to] : streams_)
    if (to.rollout == number) ended.push_back(stream);
  for (const uint64_t stream : ended) end_stream(stream, "{\"type\":\"error\",\"message\":\"the rollout was deleted\"}\n");
  bytes_ -= rollouts_.at(number).bytes;
  open_responses_ -= rollouts_.at(number).left();
  rollouts_.erase(number);
  number_of_.erase(id);
  journal_.forget(number);
}

Result<uint32_t> ServedRollouts::find_group(const std::string& id, const std::string& name) const {
  const Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  for (const std::string& as_json : {name, json_string(name)})
    if (const auto at = rollout->group_of_id.find(as_json); at != rollout->group_of_id.end()) return at->second;
  for (uint32_t g = 0; g < rollout->groups.size(); ++g)
    if (name == std::to_string(g)) {
      if (const std::string& own = rollout->groups[g].spec.id; !own.empty())
        return fail(Code::kNotFound, "no group of the rollout has the id ", name, "; group ", name, " is named by its own, ", shown(own));
      return g;
    }
  return fail(Code::kNotFound, "the rollout has no group ", json_string(shown(name)));
}

Result<ServedState> ServedRollouts::state(const std::string& id) const {
  const Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  ServedState state = rollout->state;
  state.id = rollout->head.id;
  state.is_open = rollout->head.is_open;
  state.is_over = rollout->is_over();
  state.groups = rollout->groups.size();
  state.acknowledged = rollout->head.acknowledged;
  if (rollout->waits) state.waits_for = rollout->head.expected_label;
  return state;
}

std::vector<ServedState> ServedRollouts::states() const {
  std::vector<ServedState> all;
  for (const auto& [number, rollout] : rollouts_) all.push_back(state(rollout.head.id).value());
  return all;
}

// ---- what runs -----------------------------------------------------------------------------------------------------------------

const ServedGroup* ServedRollouts::group(uint64_t number, uint32_t group) const {
  const auto at = rollouts_.find(number);
  if (at == rollouts_.end() || at->second.groups[group].left == 0) return nullptr;
  return &at->second.groups[group].spec;
}

void ServedRollouts::commit(uint64_t number, const CommittedTokens& part, WeightVersion version) {
  const auto at = rollouts_.find(number);
  if (at == rollouts_.end() || at->second.groups[part.request.group.index].is_given[part.request.sample]) return;
  journal_.commit(number, part, version);
}

void ServedRollouts::finish(uint64_t number, ServedResponse response, std::string_view line) {
  const auto at = rollouts_.find(number);
  if (at == rollouts_.end() || at->second.groups[response.group].is_given[response.sample]) return;
  Rollout& rollout = at->second;
  if (rollout.head.streams_groups) {
    response.line = line;
    return hold(rollout, std::move(response));
  }
  response.seq = rollout.state.given + 1;
  response.line = cat("{\"seq\":", response.seq, ",", line.substr(1));
  give(rollout, {std::move(response)});
}

void ServedRollouts::hold(Rollout& rollout, ServedResponse response) {
  Group& group = rollout.groups[response.group];
  const size_t bytes = response.line.size();
  if (!group.held.emplace(response.sample, std::move(response)).second) return;
  rollout.bytes += bytes;
  bytes_ += bytes;
  if (group.held.size() < group.left) return;
  std::vector<ServedResponse> whole;
  std::string lines;
  for (auto& [sample, held] : std::exchange(group.held, {})) {
    rollout.bytes -= held.line.size();
    bytes_ -= held.line.size();
    held.line.pop_back();
    lines += cat(lines.empty() ? "" : ",", std::exchange(held.line, {}));
    held.seq = rollout.state.given + whole.size() + 1;
    whole.push_back(std::move(held));
  }
  const std::string id = group.spec.id.empty() ? "" : cat("\"id\":", group.spec.id, ",");
  whole.back().line = cat("{\"seq\":", whole.back().seq, ",\"type\":\"group\",\"group\":", whole.back().group, ",", id, "\"responses\":[", lines, "]}\n");
  give(rollout, std::move(whole));
}

void ServedRollouts::give(Rollout& rollout, std::vector<ServedResponse> responses) {
  const uint64_t number = rollout.head.number;
  journal_.finish(number, responses);
  for (ServedResponse& response : responses) take_in_response(rollout, std::move(response));
  pump_all(number);
}

bool ServedRollouts::Rollout::must_stop(int64_t now_us) const {
  const ServedStop& stop = head.stop;
  const uint64_t whole = state.given - state.aborted - state.failed;
  return (stop.groups > 0 && whole_groups >= stop.groups) || (stop.samples > 0 && whole >= stop.samples) ||
         (stop.deadline_s > 0 && now_us - came_us >= stop.deadline_s * 1'000'000);
}

std::vector<uint64_t> ServedRollouts::take_stopped(int64_t now_us) {
  std::vector<uint64_t> stopped;
  for (auto& [number, rollout] : rollouts_) {
    if (rollout.came_us < 0) rollout.came_us = now_us;
    if (rollout.state.is_stopped || rollout.is_over() || !rollout.must_stop(now_us)) continue;
    rollout.state.is_stopped = true;
    stopped.push_back(number);
  }
  for (const uint64_t number : stopped) (void)close(rollouts_.at(number).head.id);
  return stopped;
}

void ServedRollouts::take_in_response(Rollout& rollout, ServedResponse response) {
  Group& group = rollout.groups[response.group];
  group.is_given[response.sample] = true;
  group.is_whole &= response.finish != FinishReason::kAborted && response.finish != FinishReason::kError;
  if (--group.left == 0) {
    rollout.whole_groups += group.is_whole ? 1 : 0;
    let_go(rollout, group);
  }
  ServedState& state = rollout.state;
  state.given = response.seq;
  --open_responses_;
  state.aborted += response.finish == FinishReason::kAborted ? 1 : 0;
  state.failed += response.finish == FinishReason::kError ? 1 : 0;
  state.output_tokens += response.output_tokens;
  if (response.seq > rollout.head.acknowledged) {
    rollout.bytes += response.line.size();
    bytes_ += response.line.size();
    rollout.lines.push_back(std::make_shared<const std::string>(std::exchange(response.line, {})));
  }
  rollout.given.push_back(std::move(response));
}

/// All its responses were given: what only they need goes.
void ServedRollouts::let_go(Rollout& rollout, Group& group) {
  const size_t before = bytes_of(group.spec);
  group.spec.prompt_ids = {};
  group.spec.carried = {};
  group.spec.sampling = {};
  rollout.bytes -= before - bytes_of(group.spec);
  bytes_ -= before - bytes_of(group.spec);
}

// ---- streams -------------------------------------------------------------------------------------------------------------------

Result<uint64_t> ServedRollouts::subscribe(const std::string& id, std::optional<uint64_t> from_seq, std::shared_ptr<LineSink> sink,
                                           int64_t progress_us) {
  const Rollout* const rollout = rollout_of(id);
  if (rollout == nullptr) return no_rollout(id);
  const uint64_t first = rollout->head.acknowledged + 1, end = rollout->state.given + 1;
  const uint64_t from = from_seq.value_or(first);
  if (from < first)
    return fail(Code::kInvalidArgument, "from_seq is ", from, ": expected at least ", first,
                first > 1 ? ", since earlier responses were acknowledged" : "");
  if (from > end) return fail(Code::kInvalidArgument, "from_seq is ", from, ": expected at most ", end, ", the next response");
  streams_[++last_stream_] = {
      .rollout = rollout->head.number, .next_seq = from, .sink = std::move(sink), .progress_us = progress_us, .line = {}};
  return last_stream_;
}

void ServedRollouts::pump(uint64_t number) {
  for (auto at = streams_.find(number); at != streams_.end() && at->second.sink->has_room(); at = streams_.find(number)) {
    Stream& stream = at->second;
    Rollout& rollout = rollouts_.at(stream.rollout);
    const std::shared_ptr<LineSink> sink = stream.sink;  // writing may unsubscribe
    stream.next_seq = std::max(stream.next_seq, rollout.head.acknowledged + 1);
    if (stream.line != nullptr) {
      const std::shared_ptr<const std::string> line = stream.line;
      const std::string_view part = std::string_view(*line).substr(stream.written, kPartBytes);
      stream.written += part.size();
      if (stream.written == line->size()) stream.line = nullptr;
      sink->write(part);
    } else if (stream.next_seq <= rollout.state.given) {
      stream.line = rollout.lines[stream.next_seq - rollout.head.acknowledged - 1];
      stream.written = 0;
      ++stream.next_seq;
    } else if (rollout.is_over()) {
      rollout.is_delivered = true;
      end_stream(number, served_state_line("done", state(rollout.head.id).value()));
    } else {
      return;
    }
  }
}

void ServedRollouts::end_stream(uint64_t number, const std::string& line) {
  auto node = streams_.extract(number);
  if (node.mapped().line == nullptr) node.mapped().sink->write(line);  // else a line would go on in the middle of another
  node.mapped().sink->end();
}

void ServedRollouts::pump_all(uint64_t rollout) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, stream] : streams_)
    if (stream.rollout == rollout) numbers.push_back(number);
  for (const uint64_t number : numbers) pump(number);
}

void ServedRollouts::tick(int64_t now_us) {
  if (journal_.must_retry(now_us)) (void)mend_journal();
  std::vector<uint64_t> due;
  for (auto& [number, stream] : streams_) {
    if (stream.progress_us == 0 || now_us < stream.progress_due_us) continue;
    stream.progress_due_us = now_us + stream.progress_us;
    if (stream.line == nullptr && stream.sink->has_room()) due.push_back(number);
  }
  for (const uint64_t number : due) {
    const auto at = streams_.find(number);
    if (at == streams_.end()) continue;
    const std::shared_ptr<LineSink> sink = at->second.sink;
    sink->write(served_state_line("progress", state(rollouts_.at(at->second.rollout).head.id).value()));
  }
}

/// Writes what a journal that failed lacks. Error: that groups are refused, since it still fails.
Status ServedRollouts::mend_journal() {
  if (journal_.failed().ok()) return {};
  std::vector<RolloutsJournal::Current> now;
  for (const auto& [number, rollout] : rollouts_)
    now.push_back({rollout.head, static_cast<uint32_t>(rollout.groups.size()), rollout.given, rollout.lines});
  const Status& failed = journal_.catch_up(now);
  return failed.ok() ? Status{} : Status{not_written(failed)};
}

}  // namespace seer
