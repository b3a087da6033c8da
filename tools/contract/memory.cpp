#include <tools/contract/memory.h>

#include <csignal>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include <tapehead/core/errors.h>

namespace tapehead::contract {
namespace {

// What a signal handler can read: no locks, no allocation.
struct Guarded {
  char name[32];
  const std::byte *begin, *end;
};
constexpr int most_rooms = 64;
Guarded guarded[most_rooms];
int fault_descriptor = -1;
const char* fault_prefix = "";

std::size_t page_size() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
std::size_t rounded_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

void remember(const std::string& name, std::span<std::byte> mapped) {
  for (Guarded& room : guarded) {
    if (room.begin) continue;
    std::strncpy(room.name, name.c_str(), sizeof room.name - 1);
    room.begin = mapped.data(), room.end = mapped.data() + mapped.size();
    return;
  }
}

void forget(const std::byte* begin) {
  for (Guarded& room : guarded) {
    if (room.begin == begin) room = {};
  }
}

void say(const char* text) {
  if (::write(fault_descriptor, text, std::strlen(text)) < 0) return;
}

void on_fault(int signal, siginfo_t* information, void*) {
  const auto* address = static_cast<const std::byte*>(information->si_addr);
  for (const Guarded& room : guarded) {
    if (!room.begin || address < room.begin || address >= room.end) continue;
    say(fault_prefix);
    say(address < room.begin + (room.end - room.begin) / 2 ? "touched memory before "
                                                           : "touched memory behind ");
    say(room.name);
    say("\n");
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // held back until this returns; then it ends the process
}

}  // namespace

GuardedRoom::GuardedRoom(std::string name, std::size_t bytes, Placement::Guard guard)
    : name_(std::move(name)) {
  constexpr std::size_t alignment = 64;
  const std::size_t page = page_size(), spare = guard == Placement::Guard::none ? page : 0;
  const std::size_t room = rounded_up(bytes + 2 * spare, page);
  void* mapped = ::mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw LogicError("contract", "the system has no more memory to map");
  mapped_ = {static_cast<std::byte*>(mapped), room + 2 * page};
  whole_ = mapped_.subspan(page, room);
  if (::mprotect(whole_.data(), room, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(mapped, mapped_.size());
    throw LogicError("contract", "the system has no more memory to map");
  }
  const std::size_t at = guard == Placement::Guard::behind ? room - rounded_up(bytes, alignment) : spare;
  data_ = whole_.data() + at;
  remember(name_, mapped_);
}

GuardedRoom::~GuardedRoom() {
  forget(mapped_.data());
  ::munmap(mapped_.data(), mapped_.size());
}

void name_faults(int descriptor, const char* prefix) {
  fault_descriptor = descriptor, fault_prefix = prefix;
  static std::byte stack[1 << 16];  // of its own: the fault may be that the stack is full
  stack_t other = {};
  other.ss_sp = stack, other.ss_size = sizeof stack;
  ::sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, nullptr);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tapehead::contract
