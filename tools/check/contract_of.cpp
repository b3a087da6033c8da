#include <tools/check/contract_of.h>

#include <cmath>

#include <fmt/format.h>

namespace tapehead::check {
namespace {

class Maker {
 public:
  Maker(const Shapes& shapes, const Settings& said, std::vector<std::pair<std::string, std::string>>& assumed)
      : shapes_(shapes), said_(said), assumed_(assumed) {}

  Contract contract() const {
    Contract contract;
    contract.scale = or_assume(said_.scale, 1 / std::sqrt(static_cast<double>(sizes().D)), "scale");
    set_visibility(contract);
    contract.softcap = said_.softcap.value_or(0);
    if (!said_.softcap) assumed_.emplace_back("softcap", "none");
    contract.bias_before_scale = said_.bias_before_scale.value_or(false);
    if (shapes_.find("bias") && !said_.bias_before_scale) assumed_.emplace_back("bias_order", "after-scale");
    contract.tiled_heads = said_.tiled_heads.value_or(false);
    if (sizes().Hk > 1 && sizes().H > sizes().Hk && !said_.tiled_heads)
      assumed_.emplace_back("head_map", "grouped");
    set_rotation(contract);
    set_norms(contract);
    set_dropout(contract);
    contract.empty_rows_zero = said_.empty_rows_zero.value_or(true);
    if (!said_.empty_rows_zero) assumed_.emplace_back("empty_rows", "zero");
    contract.lse_base_2 = said_.lse_base_2.value_or(false);
    if (shapes_.find("lse") && !said_.lse_base_2) assumed_.emplace_back("lse_base", "e");
    return contract;
  }

 private:
  const Sizes& sizes() const { return shapes_.sizes(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Unusable(shapes_.dump().origin + ": " + what);
  }

  double or_assume(std::optional<double> said, double value, const char* setting) const {
    if (!said) assumed_.emplace_back(setting, number_text(value));
    return said.value_or(value);
  }

  void set_visibility(Contract& contract) const {
    if (!said_.causal) assumed_.emplace_back("causal", "none");
    if (said_.causal && *said_.causal) {
      const CausalSetting& causal = **said_.causal;
      const Index offset = shapes_.layout() == Layout::THD ? 0 : sizes().S - sizes().L;
      contract.causal = std::vector<Index>{causal.bottom_right ? offset : causal.offset};
    }
    contract.window_left = said_.window_left.value_or(std::nullopt);
    contract.window_right = said_.window_right.value_or(std::nullopt);
    if (!said_.window_left) assumed_.emplace_back("window_left", "unlimited");
    if (!said_.window_right) assumed_.emplace_back("window_right", "unlimited");
  }

  // Of rotation and of slopes.
  void set_positions(Contract& contract) const {
    contract.rope_start_query = said_.rope_start_query.value_or(0);
    contract.rope_start_key = said_.rope_start_key.value_or(0);
    const bool counts = (said_.rope && *said_.rope != Pairing::none) || shapes_.find("slopes");
    if (!counts) return;
    const auto assume = [&](const char* setting, const char* positions, bool is_said) {
      if (!is_said && !shapes_.find(positions)) assumed_.emplace_back(setting, "0");
    };
    assume("rope_start_query", "query_positions", said_.rope_start_query.has_value());
    assume("rope_start_key", "key_positions", said_.rope_start_key.has_value());
  }

  void set_rotation(Contract& contract) const {
    set_positions(contract);
    contract.rope = said_.rope.value_or(Pairing::none);
    const DumpTensor* unrotated = shapes_.first_of({"query_unrotated", "key_unrotated"});
    if (unrotated && contract.rope == Pairing::none) {
      fail(fmt::format("setting rope: expected half or neighbour, as there is {}, and is {}",
                       unrotated->given_name, said_.rope ? "none" : "not said"));
    }
    if (contract.rope == Pairing::none) return;
    if (said_.rope_width && *said_.rope_width > sizes().D) {
      fail(fmt::format("setting rope_width: expected at most the head width {}, and is {}", sizes().D,
                       *said_.rope_width));
    }
    contract.rope_width = said_.rope_width.value_or(sizes().D);
    if (contract.rope_width % 2 != 0) {
      fail(fmt::format("setting rope_width: expected an even number, and the head width is {}", sizes().D));
    }
    if (!said_.rope_width) assumed_.emplace_back("rope_width", std::to_string(sizes().D));
    contract.rope_base = or_assume(said_.rope_base, 10000, "rope_base");
    const bool is_before =
        unrotated || shapes_.projected() || shapes_.first_of({"query_unnormed", "key_unnormed"});
    if (!is_before) assumed_.emplace_back("query", "rotated already");
  }

  void set_norms(Contract& contract) const {
    contract.norms = said_.qk_norm.value_or(QueryKeyNorms::none);
    const DumpTensor* unnormed = shapes_.first_of({"query_unnormed", "key_unnormed"});
    if (unnormed && contract.norms == QueryKeyNorms::none) {
      fail(fmt::format("setting qk_norm: expected rms or l2, as there is {}, and is {}", unnormed->given_name,
                       said_.qk_norm ? "none" : "not said"));
    }
    if (contract.norms != QueryKeyNorms::none)
      contract.norm_eps = or_assume(said_.qk_norm_eps, 0, "qk_norm_eps");
  }

  void set_dropout(Contract& contract) const {
    contract.dropout = said_.dropout.value_or(0);
    contract.training = said_.training.value_or(false);
    if (contract.dropout == 0 && !shapes_.find("dropout_keep")) return;
    if (!said_.training) assumed_.emplace_back("mode", "eval");
    if (!said_.dropout) assumed_.emplace_back("dropout", "0");
    if (contract.training && contract.dropout > 0 && !shapes_.find("dropout_keep")) {
      fail("no dropout_keep: expected a tensor that says which weights were kept, as mode is train");
    }
  }

  const Shapes& shapes_;
  const Settings& said_;
  std::vector<std::pair<std::string, std::string>>& assumed_;
};

}  // namespace

Contract contract_of(const Shapes& shapes, const Settings& said,
                     std::vector<std::pair<std::string, std::string>>& assumed) {
  return Maker(shapes, said, assumed).contract();
}

}  // namespace tapehead::check
