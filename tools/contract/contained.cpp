#include <tools/contract/contained.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include <tapehead/core/errors.h>

namespace tapehead::contract {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int has_finished = 77;  // a kernel that calls exit() will hardly say this

[[noreturn]] void run_child(const std::function<void(int)>& f, int pipe) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
  f(pipe);
  std::fflush(nullptr);
  ::_exit(has_finished);
}

// Reads until the other side has closed; false when that takes longer.
bool read_all(int pipe, Clock::time_point end, std::string& said) {
  constexpr std::size_t enough = 1 << 22;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waited = {pipe, POLLIN, 0};
    const int ready = ::poll(&waited, 1, static_cast<int>(left) + 1);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    char piece[4096];
    const ssize_t count = ::read(pipe, piece, sizeof piece);
    if (count == 0) return true;
    if (count < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (said.size() < enough) said.append(piece, static_cast<std::size_t>(count));
  }
}

// The child's status; it may have closed the pipe and go on running.
int waited_for(pid_t child, Clock::time_point end, bool& in_time) {
  int status = 0;
  while (in_time && ::waitpid(child, &status, WNOHANG) == 0) {
    in_time = Clock::now() < end;
    ::usleep(500);
  }
  if (!in_time) {
    ::kill(child, SIGKILL);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  return status;
}

}  // namespace

Ended contained(const std::function<void(int)>& f, double seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw LogicError("contract", "the system gives no pipe");
  std::fflush(nullptr);
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run_child(f, ends[1]);
  }
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    throw LogicError("contract", "the system starts no process");
  }
  Ended ended;
  bool in_time = read_all(ends[0], end, ended.said);
  const int status = waited_for(child, end, in_time);
  ::kill(-child, SIGKILL);  // what the child may have started
  ::close(ends[0]);
  if (!in_time) {
    ended.how = Ended::How::time;
  } else if (WIFSIGNALED(status)) {
    ended.how = Ended::How::signal, ended.number = WTERMSIG(status);
  } else if (WEXITSTATUS(status) != has_finished) {
    ended.how = Ended::How::exit, ended.number = WEXITSTATUS(status);
  }
  return ended;
}

std::string words_of(const Ended& ended, double seconds) {
  switch (ended.how) {
    case Ended::How::signal: {
      const char* name = ::sigabbrev_np(ended.number);
      return fmt::format("crashed with {}{} ({})", name ? "SIG" : "signal ",
                         name ? name : std::to_string(ended.number), ::strsignal(ended.number));
    }
    case Ended::How::time:
      return fmt::format("was still running after {} s", seconds);
    case Ended::How::exit:
      return fmt::format("ended the process with exit code {}", ended.number);
    case Ended::How::finished:
      break;
  }
  return {};
}

}  // namespace tapehead::contract
