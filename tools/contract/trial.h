#pragma once
// A claim being tried on a subject: what was tried, how far off the worst number was, and the call that shows
// it.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <tools/contract/subject.h>

namespace tapehead::contract {

struct Run {
  Problem problem;
  Answer answer;
};

// The worst number against its bound; more than its bound is a failure.
struct Worst {
  double error = 0, bound = 0;
  std::string where;      // "output at (0, 1, 2, 3) is 0.25, expected 0.5"
  std::vector<Run> runs;  // of the part, up to the one whose number it was

  bool fails() const { return !(error <= bound); }
};

class Trial {
 public:
  // `begin` is told of each part before it is tried.
  Trial(const Subject& subject, std::function<void(std::string_view part)> begin)
      : subject_(subject), begin_(std::move(begin)) {}

  // Calls f; when the subject does not support what f asks of it, the part counts as not tried. `name` says
  // in words what is tried.
  template <class F>
  void part(std::string_view name, F f) {
    attempt(name, name, f);
  }
  // The same of gradients.
  template <class F>
  void gradients(std::string_view of, F f) {
    attempt(fmt::format("gradients of {}", of), "gradients", f);
  }

  Run run(Problem problem) {
    Answer answer = subject_.answer(problem);
    runs_.push_back({std::move(problem), std::move(answer)});
    return runs_.back();
  }

  double rounding(const Problem& problem) const { return contract::rounding(problem, subject_.number()); }
  // Of a gradient: a term has a weight, the mean over a row's weights, and a sum over E or over the rows that
  // meet at a key.
  double gradient_rounding(const Problem& p) const {
    return 3 * rounding(p) +
           unit() * static_cast<double>(p.value_width() + p.queries() * p.heads() / p.key_heads());
  }
  double unit() const { return unit_roundoff(subject_.number()); }
  Number number() const { return subject_.number(); }

  // That two evaluations of one problem agree, each with its own rounding; gradients when both have them.
  void compare_answers(const Run& run, const std::string& what, const Answer& expected);
  // That max |got - expected| <= bound; two NaN are apart, as are arrays whose shapes differ.
  void compare(std::string_view what, const Array<double>& got, const Array<double>& expected, double bound);
  // That every number of both is the same; NaN equals NaN.
  void same(std::string_view what, const Array<double>& got, const Array<double>& expected);
  // Of one number.
  void within(double error, double bound, const std::string& where);
  // `where` says what was found when it is not so.
  void require(bool is_so, const std::string& where) { within(is_so ? 0 : 1, 0, where); }

  const std::vector<std::string>& tried() const { return tried_; }
  const std::string& lacking() const { return lacking_; }  // of the first part that was not tried
  const std::optional<Worst>& worst() const { return worst_; }
  // Of the runs of the worst number's part the one that is furthest from the explicit formulas.
  Run evidence() const;

 private:
  template <class F>
  void attempt(std::string_view part, std::string_view noted, F f) {
    begin_(part);
    runs_.clear();
    try {
      f();
      if (std::find(tried_.begin(), tried_.end(), noted) == tried_.end()) tried_.emplace_back(noted);
    } catch (const Unsupported& lack) {
      if (lacking_.empty()) lacking_ = lack.what;
    }
  }

  const Subject& subject_;
  std::function<void(std::string_view)> begin_;
  std::vector<Run> runs_;  // of this part
  std::vector<std::string> tried_;
  std::string lacking_;
  std::optional<Worst> worst_;
};

}  // namespace tapehead::contract
