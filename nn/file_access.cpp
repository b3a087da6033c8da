#include <tapehead/nn/file_access.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tapehead::detail {
namespace {

[[noreturn]] void fail_with_errno(const std::string& file, std::string_view doing) {
  const std::string reason = std::generic_category().message(errno);
  throw FileError(file, std::string(doing) + ": " + reason);
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

Mapping::Mapping(const std::string& path) {
  // O_NONBLOCK: to open a pipe must not wait for its writer. It means nothing to a regular file.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail_with_errno(path, "cannot be opened");
  struct stat status = {};
  if (::fstat(file.fd, &status) != 0) fail_with_errno(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (memory == MAP_FAILED) fail_with_errno(path, "cannot be mapped");
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Replacement::Replacement(const std::string& path) : path_(path), target_(path) {
  struct stat status = {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
  if (exists) {
    std::error_code none;
    const auto target = std::filesystem::canonical(path, none);
    if (!none) target_ = target.string();
  }
  static std::atomic<unsigned> count{0};
  std::string temporary;
  do {
    temporary = target_ + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
    file_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, exists ? 0600 : 0666);
  } while (file_ < 0 && errno == EEXIST);  // left by a process of this number that was killed
  if (file_ < 0) fail_with_errno(path, "cannot be created");
  temporary_ = std::move(temporary);
  if (exists && ::fchmod(file_, status.st_mode & 0777) != 0) fail("cannot be given its permissions");
}

Replacement::~Replacement() { remove(); }

void Replacement::append(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot be written");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void Replacement::put_in_place() {
  if (::fsync(file_) != 0) fail("cannot be flushed to disk");
  if (::close(std::exchange(file_, -1)) != 0) fail("cannot be closed");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
  temporary_.clear();
  // The new name reaches the disk with the folder. Not every file system can do this, and the file is whole
  // either way, so a failure here is none of the caller's.
  const Descriptor folder{::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);
}

// Cleans up first: an exception that nobody catches runs no destructor.
void Replacement::fail(std::string_view doing) {
  const int reason = errno;
  remove();
  errno = reason;
  fail_with_errno(path_, doing);
}

void Replacement::remove() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

}  // namespace tapehead::detail
