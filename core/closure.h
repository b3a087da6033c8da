#pragma once
// Closure<R(A...)>: a function object stored in place. It neither moves nor copies, so a call costs one
// indirection and a tape can keep millions in chunks; std::function doubled the cost of a small op (engine
// notes, 2.).

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include <tapehead/core/memory.h>

namespace tapehead::detail {

template <class Signature>
class Closure;

template <class Result, class... Arguments>
class Closure<Result(Arguments...)> {
 public:
  static constexpr std::size_t room = 64;  // two captured Vars and a few flags; larger ones go to the pool

  Closure() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Closure>) explicit Closure(F&& f) {
    using Stored = std::remove_cvref_t<F>;
    static_assert(alignof(Stored) <= storage_alignment);
    if constexpr (fits<Stored>) {
      new (buffer_) Stored(std::forward<F>(f));
    } else {
      void* block = take_storage(sizeof(Stored));
      try {
        new (block) Stored(std::forward<F>(f));
      } catch (...) {
        give_storage(block, sizeof(Stored));
        throw;
      }
      *reinterpret_cast<void**>(buffer_) = block;
    }
    table_ = &table_for<Stored>;
  }
  Closure(const Closure&) = delete;
  Closure& operator=(const Closure&) = delete;
  ~Closure() {
    if (table_) table_->destroy(buffer_);
  }

  explicit operator bool() const { return table_ != nullptr; }
  Result operator()(Arguments... arguments) {
    return table_->call(buffer_, std::forward<Arguments>(arguments)...);
  }

 private:
  struct Table {
    Result (*call)(std::byte*, Arguments&&...);
    void (*destroy)(std::byte*) noexcept;
  };

  template <class F>
  static constexpr bool fits = sizeof(F) <= room && alignof(F) <= alignof(std::max_align_t);

  template <class F>
  static F& stored(std::byte* buffer) {
    if constexpr (fits<F>) {
      return *std::launder(reinterpret_cast<F*>(buffer));
    } else {
      return *static_cast<F*>(*reinterpret_cast<void**>(buffer));
    }
  }

  template <class F>
  static constexpr Table table_for = {[](std::byte* buffer, Arguments&&... arguments) -> Result {
                                        return stored<F>(buffer)(std::forward<Arguments>(arguments)...);
                                      },
                                      [](std::byte* buffer) noexcept {
                                        F& f = stored<F>(buffer);
                                        f.~F();
                                        if constexpr (!fits<F>) give_storage(&f, sizeof(F));
                                      }};

  const Table* table_ = nullptr;
  alignas(std::max_align_t) std::byte buffer_[room];
};

}  // namespace tapehead::detail
