#include "gpu/cuda/cuda_rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocols/check.h"
#include "protocols/kv.h"

namespace seer::cuda {
namespace {

constexpr int64_t kDrainUs = 10'000'000;  // that copies which are on their way may take; see cuda_engine.h

int64_t wall_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

bool Job::end(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
  return --open_ == 0;
}

void CudaRank::ResultBuffers::put(Results buffer) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(buffer);
  }
  wake_.notify_one();
}
CudaRank::Results CudaRank::ResultBuffers::take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return !free_.empty(); });
  const Results buffer = free_.back();
  free_.pop_back();
  return buffer;
}

CudaRank::CudaRank(std::unique_ptr<Device> device, std::unique_ptr<Communicator> peers, std::unique_ptr<CudaForward> forward,
                   const Config& config, std::function<void(Job&)> over)
    : config_(config),
      over_(std::move(over)),
      peers_(std::move(peers)),
      device_(std::move(device)),
      forward_(std::move(forward)),
      version_(config.version),
      uploader_({}, [this](std::shared_ptr<Job>& job) {
        InFlight flight = queue(std::get<UploadWork>(job->work));
        if (job->end(flight.status)) over_(*job);
      }),
      thread_({}, [this](std::shared_ptr<Job>& job) {
        InFlight flight = std::visit([this](auto& work) { return queue(work); }, job->work);
        flight.job = std::move(job);
        waiter_.put(std::move(flight));
      }) {}

void CudaRank::stop() {
  if (peers_) {
    peers_->abort(fail(Code::kCancelled, "cuda: the engine ends"));  // or ranks would wait for jobs that others drop
    (void)peers_->wait(0);                                          // ends all gathers: one may block the thread that queues
  }
  uploader_.stop();
  thread_.stop();
  waiter_.stop();
}

Status CudaRank::reserve_staging() {
  for (Staged& s : staged_) {
    const int64_t bytes = std::max(CudaForward::kChangesBytes, CudaForward::plan_bytes(config_.rows_max));
    SEER_ASSIGN_OR_RETURN(s.memory, device_->allocate_pinned(bytes));
  }
  for (int32_t i = 0; i < (is_first() ? kResultBuffers : 0); ++i) {
    constexpr int64_t kRowBytes = sizeof(Sampled) + (1 + kKeptStride) * sizeof(int32_t);
    SEER_ASSIGN_OR_RETURN(std::byte * memory, device_->allocate_pinned(config_.rows_max * kRowBytes));
    Results results{.sampled = reinterpret_cast<Sampled*>(memory)};
    results.kept_counts = reinterpret_cast<int32_t*>(results.sampled + config_.rows_max);
    results.kept = results.kept_counts + config_.rows_max;
    results_.put(results);
  }
  return {};
}

void CudaRank::put(const std::shared_ptr<Job>& job) {
  (std::holds_alternative<UploadWork>(job->work) ? uploader_ : thread_).put(job);
}

// ---- the thread that queues --------------------------------------------------------------------------------------------

CudaRank::InFlight CudaRank::queue(StepWork& work) {
  InFlight flight{.start_us = wall_us()};
  if (is_first()) work.result.version = version_;
  wait_for_exports(work.written);
  for (const Pass& pass : work.passes) {
    upload_changes(pass.changes);
    upload_plan(pass);
    forward_->run(*device_, pass);
    if (pass.samples.empty() || !is_first()) continue;
    flight.results = results_.take();
    const int64_t samples = std::ssize(pass.samples);
    device_->copy_out(Stream::kSteps, flight.results.sampled, forward_->sampled(), samples * int64_t{sizeof(Sampled)});
    if (std::ranges::any_of(pass.destinations, &Pass::Destination::gives_kept)) {
      device_->copy_out(Stream::kSteps, flight.results.kept_counts, forward_->kept_counts(), samples * 4);
      device_->copy_out(Stream::kSteps, flight.results.kept, forward_->kept(), samples * kKeptStride * 4);
    }
    if (&pass == &work.passes.back()) break;
    if (wait(device_->record(Stream::kSteps)).ok()) read_samples(pass, flight.results, work.result);
    results_.put(std::exchange(flight.results, {}));
  }
  flight.event = last_step_ = device_->record(Stream::kSteps);
  return flight;
}

CudaRank::Staged& CudaRank::next_staged() {
  Staged& s = staged_[next_staged_++ % staged_.size()];
  (void)wait(s.used);  // an error is seen at the end of the step
  return s;
}

void CudaRank::upload_changes(const ChangeList& changes) {
  size_t slot = 0, table = 0, log = 0;
  while (slot < changes.slots.size() || table < changes.tables.size() || log < changes.logs.size()) {
    Staged& staged = next_staged();
    size_t room = CudaForward::kChangesMax;
    std::byte* to = staged.memory + sizeof(Changes);
    const auto put = [&](const auto& list, size_t& next) {
      const size_t taken = std::min(room, list.size() - next);
      if (taken > 0) std::memcpy(to, &list[next], taken * sizeof list[0]);
      to += taken * sizeof list[0];
      next += taken;
      room -= taken;
      return static_cast<int32_t>(taken);
    };
    Changes header;
    header.slots = put(changes.slots, slot);
    header.tables = put(changes.tables, table);
    header.logs = put(changes.logs, log);
    std::memcpy(staged.memory, &header, sizeof header);
    forward_->apply_changes(*device_, staged.memory, to - staged.memory, header.slots + header.tables + header.logs);
    staged.used = device_->record(Stream::kSteps);
  }
}

/// The plan stays on the device while the same slots go on.
void CudaRank::upload_plan(const Pass& pass) {
  new_plan_.resize(static_cast<size_t>(CudaForward::plan_bytes(config_.rows_max)));
  new_plan_.resize(static_cast<size_t>(CudaForward::write_plan(pass, new_plan_.data())));
  if (new_plan_ == plan_) return;
  std::swap(plan_, new_plan_);
  Staged& staged = next_staged();
  std::memcpy(staged.memory, plan_.data(), plan_.size());
  forward_->load_plan(*device_, staged.memory, std::ssize(plan_));
  staged.used = device_->record(Stream::kSteps);
}

/// Orders the step after exports of blocks that it writes to; others run beside it.
void CudaRank::wait_for_exports(const std::vector<DeviceBlockId>& written) {
  std::erase_if(exporting_, [over = copies_over_.load()](const auto& e) { return e.second <= over; });
  for (const auto& [block, event] : exporting_)
    if (std::ranges::find(written, block) != written.end()) device_->wait_on(Stream::kSteps, event);
}

CudaRank::InFlight CudaRank::queue(CopyWork& work) {
  InFlight flight;
  const bool exports = work.batch.direction == CopyBatch::Direction::kExport;
  if (!exports)
    std::call_once(work.checked, [&work] {
      for (const BlockCopy& copy : work.batch.blocks) work.result.crc32c.push_back(crc32c(copy.host));
    });
  device_->wait_on(Stream::kCopies, last_step_);
  const int64_t bytes = config_.block_bytes, first = peers_ ? peers_->rank() * bytes : 0;
  for (size_t i = 0; i < work.batch.blocks.size(); ++i) {
    const BlockCopy& copy = work.batch.blocks[i];
    if (exports)
      device_->copy_out(Stream::kCopies, copy.host.data() + first, forward_->block(copy.block), bytes);
    else if (work.result.crc32c[i] == copy.crc32c)
      device_->copy_in(Stream::kCopies, forward_->block(copy.block), copy.host.data() + first, bytes);
  }
  flight.event = device_->record(Stream::kCopies);
  if (exports)
    for (const BlockCopy& copy : work.batch.blocks) exporting_.emplace_back(copy.block, flight.event);
  else
    device_->wait_on(Stream::kSteps, flight.event);
  return flight;
}

CudaRank::InFlight CudaRank::queue(UploadWork& work) {
  return {.status = forward_->stage_weights(*device_, **work.loaded.model)};
}

CudaRank::InFlight CudaRank::queue(SwitchWork& work) {
  InFlight flight{.status = forward_->switch_weights(*device_, *work.model)};
  if (!flight.status.ok()) device_->fail_with(flight.status.error());  // what it has is neither the old nor the new weights
  version_ = work.version;
  flight.event = device_->record(Stream::kSteps);
  return flight;
}

// ---- the thread that waits -----------------------------------------------------------------------------------------------

void CudaRank::read_samples(const Pass& pass, const Results& results, StepResult& result) {
  for (size_t i = 0; i < pass.destinations.size(); ++i) {
    const Pass::Destination& to = pass.destinations[i];
    const auto sequence = static_cast<size_t>(to.sequence), sample = static_cast<size_t>(to.sample);
    const Sampled& sampled = results.sampled[i];
    result.sampled[sequence][sample] = {sampled.token, sampled.logprob};
    if (!to.gives_kept || sampled.token < 0) continue;
    const int32_t* kept = results.kept + i * kKeptStride;
    result.kept[sequence][sample] = std::make_shared<const std::vector<int32_t>>(kept, kept + results.kept_counts[i]);
  }
}

/// The results of copies give the host's memory back, which those on their way use. All of them together have kDrainUs.
void CudaRank::drain_copies() {
  const auto now = std::chrono::steady_clock::now();
  if (!drains_until_) drains_until_ = now + std::chrono::microseconds(kDrainUs);
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(*drains_until_ - now).count();
  (void)device_->drain(Stream::kCopies, std::max<int64_t>(0, left));
}

void CudaRank::finish(InFlight& flight) {
  const Status waited = wait(flight.event), status = flight.status.ok() ? waited : flight.status;
  if (std::holds_alternative<CopyWork>(flight.job->work)) {
    copies_over_ = flight.event;
    if (!waited.ok()) drain_copies();
  }
  if (auto* const step = std::get_if<StepWork>(&flight.job->work); step != nullptr && is_first()) {
    const bool has_samples = flight.results.sampled != nullptr;
    if (status.ok() && has_samples) read_samples(step->passes.back(), flight.results, step->result);
    if (has_samples) results_.put(flight.results);
    const int64_t now_us = wall_us();
    step->result.step_us = now_us - std::max(flight.start_us, std::exchange(last_over_us_, now_us));
  }
  if (flight.job->end(status)) over_(*flight.job);
}

}  // namespace seer::cuda
