#include <tapehead/core/parallel.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tapehead {
namespace {

int threads_at_first() {
  if (const char* text = std::getenv("TAPEHEAD_THREADS")) {
    int count = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), count);
    if (error == std::errc() && *end == '\0' && count >= 1) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int>& threads() {
  static std::atomic<int> count = threads_at_first();
  return count;
}

thread_local bool inside_a_chunk = false;

// One job at a time. The caller works along; a helper that wakes too late finds the job closed and is not
// waited for.
class Pool {
 public:
  static Pool& instance() {
    static Pool pool;
    return pool;
  }

  void run(Index count, detail::ChunkTask task, int thread_count) {
    const std::lock_guard one_job(job_mutex_);
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(helpers_.size()) < thread_count - 1) helpers_.emplace_back([this] { help(); });
      task_ = task;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      open_places_ = thread_count - 1;
      failure_ = nullptr;
    }
    wake_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    open_places_ = 0;
    done_.wait(lock, [&] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

 private:
  void work() {
    inside_a_chunk = true;
    for (Index chunk; (chunk = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      try {
        task_.call(task_.context, chunk);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
    inside_a_chunk = false;
  }

  void help() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || open_places_ > 0; });
      if (stopping_) return;
      --open_places_;
      ++busy_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex job_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> helpers_;
  detail::ChunkTask task_{};
  Index count_ = 0;
  std::atomic<Index> next_ = 0;
  int open_places_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
};

}  // namespace

int thread_count() { return threads().load(std::memory_order_relaxed); }
void set_thread_count(int count) { threads().store(std::max(1, count), std::memory_order_relaxed); }

namespace detail {

void run_chunks(Index count, ChunkTask task) {
  const int available = static_cast<int>(std::min<Index>(thread_count(), count));
  if (available <= 1 || inside_a_chunk) {
    for (Index chunk = 0; chunk < count; ++chunk) task.call(task.context, chunk);
    return;
  }
  Pool::instance().run(count, task, available);
}

}  // namespace detail
}  // namespace tapehead
