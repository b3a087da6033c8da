#pragma once
// Which mistakes explain a candidate: each alone, then two together.

#include <vector>

#include <tools/check/compare.h>
#include <tools/check/mistake.h>

namespace tapehead::check {

using NoiseOf = std::map<std::string, Noise, std::less<>>;

// Mistakes that act together, and what they leave of the residual.
struct Explanation {
  std::vector<Hypothesis> acting;
  bool right_gradients = false;  // the gradients are those of the right formula
  double left = 1;               // norm of the residual, relative to that of the right formula
  double score = 0;              // root mean square of what is left, in units of the noise
  bool explains = false;         // everything falls to noise

  Formula formula() const;
};

class Search {
 public:
  explicit Search(const Call& call);

  bool agrees() const { return agrees_; }
  const Tensors& right() const { return right_.results; }
  const NoiseOf& noise() const { return noise_; }
  const Judged& judged() const { return judged_; }
  const std::vector<std::string>& names() const { return names_; }  // of what is judged

  // Those that explain the candidate equally well with the fewest mistakes; or the best one that does not.
  std::vector<Explanation> explanations();
  // The same by one mistake; empty when none explains all.
  std::vector<Explanation> explanations_by_one();

 private:
  struct Judgement {
    bool forward = true, gradients = true;        // within the noise
    double left_forward = 0, left_gradients = 0;  // squared norms
    double score = 0;
  };
  Judgement judge(const Tensors& results, const Tensors& gradients, const NoiseOf& noise,
                  const NoiseOf& noise_of_gradients) const;
  bool equals_right(const Tensors& results) const;
  double share_of_noise() const;
  bool mostly_finite() const;
  Explanation judged_explanation(std::vector<Hypothesis> acting);
  void note(Explanation e);

  // Hypotheses whose forward pass gives the same numbers, that of the right one left out.
  using Alike = std::vector<const Hypothesis*>;
  std::vector<Alike> distinct_forward() const;

  void try_alone();
  void try_backward_on_top();
  void try_two_forward();
  std::vector<Explanation> equal_ones() const;

  const Call& call_;
  Work right_;
  NoiseOf noise_;
  Judged judged_;
  std::vector<std::string> names_;
  bool agrees_ = true;
  double threshold_ = 1;  // of the share that is left, from which on the noise is looked at
  Judgement of_right_;
  std::vector<Hypothesis> hypotheses_;  // that change something
  std::vector<Explanation> found_, forward_only_;
  Explanation best_;
};

// Tolerance in units of the noise of a plain implementation.
inline constexpr double noise_factor = 3;

}  // namespace tapehead::check
