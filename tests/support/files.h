#pragma once
// What tests of file formats share: a folder that goes with the test, errors that name the file, a full disk,
// a limit on memory, and files that were damaged at random.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tapehead/core/array.h>
#include <tapehead/nn/file_error.h>

namespace tapehead {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  FilesTest() { fs::create_directories(folder_); }
  ~FilesTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "file") const { return (folder_ / name).string(); }

  static void put(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  static std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> files_in_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    return names;
  }

  const fs::path folder_ =
      fs::temp_directory_path() / (std::string("tapehead-") + std::to_string(::getpid()) + "-" +
                                   testing::UnitTest::GetInstance()->current_test_info()->name());
};

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The message of the FileError that f throws; any other outcome fails the test.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const FileError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a FileError: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Equal shapes and equal bits, so that NaN equals itself and -0 differs from 0.
template <class T>
bool same_bits(const Array<T>& a, const Array<T>& b) {
  return a.shape() == b.shape() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// While it lives, no file grows beyond `bytes`: to a writer this is a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    rlimit smaller = limit_;
    smaller.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &smaller);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit limit_ = {};
  void (*handler_)(int);
};

// Runs f in a process of its own that may map and allocate this much more than it has now, and ends it with
// one of these. For EXPECT_EXIT. The message of a FileError is printed. (The address sanitizer ends with 1
// where memory does not suffice.)
enum Outcome { done = 0, file_error = 3, out_of_memory = 4, other_error = 5 };

template <class F>
[[noreturn]] void exit_of(std::size_t bytes, F f) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit = {};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    f();
  } catch (const FileError& error) {
    const std::string_view message = error.what();
    std::_Exit(::write(STDERR_FILENO, message.data(), message.size()) > 0 ? file_error : other_error);
  } catch (const std::bad_alloc&) {
    std::_Exit(out_of_memory);
  } catch (...) {
    std::_Exit(other_error);
  }
  std::_Exit(done);
}

// Damages texts: bits, bytes and stretches change, vanish, appear and repeat, and numbers become other ones.
class Damage {
 public:
  explicit Damage(unsigned seed, std::vector<std::string> pieces)
      : random_(seed), pieces_(std::move(pieces)) {}

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }

  std::string operator()(std::string text) {
    for (std::size_t change = below(3) + 1; change-- > 0 && !text.empty();) once(text);
    return text;
  }

 private:
  void once(std::string& text) {
    const std::size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 1:
        text[at] = static_cast<char>(random_() & 255);
        break;
      case 2:
        text.erase(at, below(12));
        break;
      case 3:
        text.insert(at, pieces_[below(pieces_.size())]);
        break;
      case 4:
        text.insert(at, text.substr(below(text.size()), below(60)));
        break;
      default:
        replace_number(text, at);
    }
  }

  void replace_number(std::string& text, std::size_t at) {
    const std::string numbers[] = {"0",
                                   "1",
                                   "2",
                                   "7",
                                   "-1",
                                   "4294967296",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "18446744073709551608",
                                   "18446744073709551616"};
    const std::size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, numbers[below(std::size(numbers))]);
  }

  std::mt19937 random_;
  std::vector<std::string> pieces_;
};

}  // namespace tapehead
