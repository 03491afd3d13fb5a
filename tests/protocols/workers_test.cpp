#include "protocols/workers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <numeric>
#include <thread>

using namespace seer;

namespace {

constexpr int kProducers = 4, kEach = 500;

/// Several threads put the numbers [0, kProducers * kEach), each its own part, in ascending order.
template <class Put>
void produce(Put put) {
  std::vector<std::jthread> producers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([p, &put] {
      for (int i = 0; i < kEach; ++i) put(p * kEach + i);
    });
}

std::vector<int> all_numbers() {
  std::vector<int> all(kProducers * kEach);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Work that holds its thread until it is let go.
class Gate {
 public:
  void wait() {
    entered_.set_value();
    open_.get_future().wait();
  }
  void wait_until_entered() { entered_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  std::promise<void> entered_, open_;
};

using Task = std::function<void()>;
void run_task(Task& task) { task(); }

}  // namespace

TEST_CASE("workers: work of many producers runs once each, and on one thread in the order of each producer") {
  for (const int32_t threads : {1, 3}) {
    CAPTURE(threads);
    Outbox<int> done;
    Workers<int> workers({.threads = threads}, [&](int& number) { done.put(number); });
    produce([&](int number) { workers.put(number); });
    workers.finish();
    std::vector<int> numbers = done.take();
    if (threads == 1)
      for (int p = 0; p < kProducers; ++p) {
        std::vector<int> own;
        std::ranges::copy_if(numbers, std::back_inserter(own), [p](int n) { return n / kEach == p; });
        CHECK(std::ranges::is_sorted(own));
      }
    std::ranges::sort(numbers);
    CHECK(numbers == all_numbers());
  }
}

TEST_CASE("workers: stop() gives back, in order, exactly what had not begun") {
  bool was_some_left = false;
  for (int tries = 0; tries < 1000 && !was_some_left; ++tries) {
    Gate gate;
    std::vector<int> run;
    Workers<int> workers({}, [&](int& number) {
      run.push_back(number);
      if (number == 0) gate.wait();
    });
    workers.put(0);
    gate.wait_until_entered();
    workers.put_background(9);
    for (int i = 1; i < 4; ++i) workers.put(i);
    std::future<std::vector<int>> rest = std::async(std::launch::async, [&] { return workers.stop(); });
    for (int i = 0; i < tries; ++i) std::this_thread::yield();
    gate.open();
    const std::vector<int> left = rest.get();
    // Some of it may have begun before stop() was called there; what was put is in one of the two, once.
    std::vector<int> both = run;
    both.insert(both.end(), left.begin(), left.end());
    CHECK(both == std::vector<int>{0, 1, 2, 3, 9});
    was_some_left = !left.empty();
  }
  CHECK(was_some_left);
}

TEST_CASE("workers: what producers put while the workers are stopped either runs or is given back") {
  std::atomic<int> run{0};
  auto workers = std::make_unique<Workers<int>>(WorkersConfig{.threads = 2}, [&](int&) { ++run; });
  std::atomic<int> put{0};
  size_t left = 0;
  {
    std::vector<std::jthread> producers;
    for (int p = 0; p < kProducers; ++p)
      producers.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) workers->put(i), ++put;
      });
    left = workers->stop().size();
  }
  left += workers->stop().size();  // put after the first stop()
  CHECK(put == kProducers * kEach);
  CHECK(run + static_cast<int>(left) == kProducers * kEach);
}

TEST_CASE("workers: what is destroyed with work queued drops that work, and waits for the work that has begun") {
  Gate gate;
  const auto held = std::make_shared<int>(0);
  std::atomic<bool> ended = false, began_later = false;
  auto workers = std::make_unique<Workers<Task>>(WorkersConfig{}, run_task);
  workers->put([&] {
    gate.wait();
    ended = true;
  });
  gate.wait_until_entered();
  workers->put([&, held] { began_later = true; });
  CHECK(held.use_count() == 2);
  std::thread opener([&] { gate.open(); });
  const std::vector<Task> rest = workers->stop();
  CHECK(ended);
  CHECK(rest.size() + (began_later ? 1 : 0) == 1);
  opener.join();
  workers->put([held] {});
  CHECK(held.use_count() == 2 + static_cast<int>(rest.size()));
  workers.reset();
  CHECK(held.use_count() == 1 + static_cast<int>(rest.size()));
}

TEST_CASE("workers: finish() runs all that is queued, and what that puts") {
  std::atomic<int> run{0};
  Gate gate;
  Workers<Task> workers({.threads = 2, .background_max = 1}, run_task);
  workers.put([&] { gate.wait(); });
  gate.wait_until_entered();
  for (int i = 0; i < 10; ++i)
    workers.put([&] {
      ++run;
      workers.put_background([&] { ++run; });
    });
  gate.open();
  workers.finish();
  CHECK(run == 20);
}

TEST_CASE("workers: background work waits until nothing else is queued") {
  std::vector<int> order;
  Gate gate;
  Workers<Task> workers({}, run_task);
  workers.put([&] { gate.wait(); });
  gate.wait_until_entered();
  workers.put_background([&] { order.push_back(2); });
  workers.put([&] { order.push_back(0); });
  workers.put_background([&] { order.push_back(3); });
  workers.put([&] { order.push_back(1); });
  gate.open();
  workers.finish();
  CHECK(order == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("workers: no more than background_max threads are at background work, so that one is left for the rest") {
  std::atomic<int> at_once{0}, most{0}, run{0};
  Workers<Task> workers({.threads = 3, .background_max = 2}, run_task);
  Gate first, second;
  workers.put_background([&] { first.wait(); });
  workers.put_background([&] { second.wait(); });
  first.wait_until_entered();
  second.wait_until_entered();
  std::promise<void> answered;
  workers.put_background([&] { ++run; });
  workers.put([&] { answered.set_value(); });  // the third thread takes it, though both others are held
  answered.get_future().wait();
  CHECK(run == 0);
  first.open();
  second.open();
  for (int i = 0; i < 200; ++i)
    workers.put_background([&] {
      const int now = ++at_once;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) seen = most;
      --at_once;
      ++run;
    });
  workers.finish();
  CHECK(run == 201);
  CHECK(most <= 2);
}

TEST_CASE("workers: each thread runs on_start once, before any work") {
  std::atomic<int> started{0};
  thread_local bool ready = false;
  std::atomic<bool> all_ready = true;
  Workers<int> workers({.threads = 3, .on_start = [&] { ready = true, ++started; }}, [&](int&) {
    if (!ready) all_ready = false;
  });
  for (int i = 0; i < 100; ++i) workers.put(i);
  workers.finish();
  CHECK(started == 3);
  CHECK(all_ready);
}

TEST_CASE("outbox: everything that many threads put is taken once, and each put wakes the owner") {
  std::atomic<int> woken{0};
  Outbox<int> box([&] { ++woken; });
  std::vector<int> taken;
  {
    std::jthread owner([&] {
      while (taken.size() < kProducers * kEach) {
        const std::vector<int> some = box.take();
        taken.insert(taken.end(), some.begin(), some.end());
      }
    });
    produce([&](int number) { box.put(number); });
  }
  std::ranges::sort(taken);
  CHECK(taken == all_numbers());
  CHECK(woken == kProducers * kEach);
  CHECK(box.take().empty());
}
