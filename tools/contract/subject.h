#pragma once
// Whose attention is looked at: the composition, the fused kernel, or a library of somebody else.

#include <memory>
#include <string>

#include <tools/contract/problem.h>

namespace tapehead::contract {

class Subject {
 public:
  explicit Subject(Number number) : number_(number) {}
  virtual ~Subject() = default;

  Number number() const { return number_; }

  // What it computes in its numbers. Throws Unsupported for what it does not offer and Error for a failure.
  virtual Answer answer(const Problem& problem) const = 0;

 private:
  Number number_;
};

// The library's own attention, by ops or by the fused kernel. It decides itself where results lie, so it
// takes no placement.
std::unique_ptr<Subject> built_in(AttentionKernel kernel, Number number);

// The kernel of a shared library, which stays loaded. With a width, it gets no other: narrower problems are
// widened, wider ones not tried. Call this in a process that may die: loading runs the
// library's own code. Throws FileError when it cannot be loaded, lacks a name of <tapehead/tapehead_kernel.h>
// or is of another version.
std::unique_ptr<Subject> library(const std::string& path, Number number, std::optional<Index> width = {});

}  // namespace tapehead::contract
