#include <tools/doctor.h>
#include <tools/output.h>

#include <cblas.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tapehead/core/gradient.h>
#include <tapehead/core/parallel.h>
#include <tapehead/core/random.h>
#include <tapehead/nn/attention.h>
#include <tapehead/nn/file_error.h>
#include <tapehead/ops/kernels/block_product.h>
#include <tapehead/ops/kernels/processor.h>
#include <tapehead/ops/matmul.h>

namespace tapehead::tools {
namespace {

using Json = nlohmann::ordered_json;
using kernels::Arch;

// ---- What there is

std::string processor_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    if (at != std::string::npos) return line.substr(at);
  }
  return "unknown";
}

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

// "OpenBLAS 0.3.21 NO_LAPACKE ..." is what the library says of itself.
std::string blas_version() {
  const std::string config = openblas_get_config();
  return config.substr(0, config.find(' ', config.find(' ') + 1));
}

constexpr bool optimized_build =
#ifdef __OPTIMIZE__
    true;
#else
    false;
#endif

// ---- What it does

// The most of `runs` runs.
template <class F>
double best_rate(double operations, int runs, F run) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    run();
    best = std::max(best, operations / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

void blas_product(blasint n, const float* a, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, a, n, 0, c, n);
}
void blas_product(blasint n, const double* a, double* c) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, a, n, 0, c, n);
}

template <class T>
Rates product_rates() {
  constexpr Index n = 1024;
  constexpr double operations = 2.0 * n * n * n;
  Generator random(1);
  const Var<T> a(random.normal<T>({n, n}));
  const T* values = a.value().data();
  Array<T> c = Array<T>::zeros({n, n});
  T* out = c.mutable_values().data();
  Rates rates;
  rates.openblas = best_rate(operations, 5, [&] { blas_product(n, values, out); });
  rates.ours = best_rate(operations, 5, [&] {
    kernels::block_product<T>(n, n, n, {values, n}, {values, n}, 0, out, n);
  });
  rates.used = best_rate(operations, 5, [&] { static_cast<void>(matmul(a, a)); });
  return rates;
}

void measure_attention(MachineReport& report) {
  constexpr Index heads = 8, length = 2048, width = 64;
  constexpr double operations = 4.0 * heads * length * length * width;
  Generator random(1);
  const auto numbers = random.normal<float>({1, heads, length, width});
  const Var<float> constant(numbers);
  auto forward = [&] { static_cast<void>(attention(constant, constant, constant)); };
  auto forward_backward = [&] {
    Tape<float> tape;
    const Var<float> query = tape.input(numbers), key = tape.input(numbers), value = tape.input(numbers);
    static_cast<void>(
        gradient_values(attention(query, key, value).output, {query, key, value}, Var<float>(numbers)));
  };
  report.attention_forward = best_rate(operations, 4, forward);
  // Backward takes five products where forward takes two.
  report.attention_forward_backward = best_rate(3.5 * operations, 3, forward_backward);
  set_thread_count(report.threads);
  report.attention_all_threads = best_rate(operations, 4, forward);
}

// ---- What is said of it

std::string giga(double rate) { return fmt::format("{:.0f} GFLOP/s", rate / 1e9); }

double share(double rate, const Rates& rates) { return rate / std::max(rates.openblas, rates.ours); }

void print_text(const MachineReport& r) {
  fmt::print("Processor   {}, {} for this process\n", r.processor, r.processors);
  fmt::print("Vectors     {} in use of {}\n", r.vectors_in_use, fmt::join(r.vectors_available, ", "));
  fmt::print("BLAS        {}, kernels {} ({})\n", r.blas_version, r.blas_core, r.blas_level);
  fmt::print("Threads     {}\n", r.threads);
  for (const auto& [name, rates] : {std::pair{"Products", &r.f32}, std::pair{"", &r.f64}}) {
    fmt::print("{:<12}{}: OpenBLAS {}, tapehead's own {}, matmul gives {}\n", name,
               rates == &r.f32 ? "float" : "double", giga(rates->openblas), giga(rates->ours),
               giga(rates->used));
  }
  fmt::print("Attention   forward {}, {:.2f} of the best product; with backward {}, {:.2f}\n",
             giga(r.attention_forward), share(r.attention_forward, r.f32), giga(r.attention_forward_backward),
             share(r.attention_forward_backward, r.f32));
  if (r.threads > 1) {
    fmt::print("            forward on {} threads {}, {:.1f} times one thread\n", r.threads,
               giga(r.attention_all_threads), r.attention_all_threads / r.attention_forward);
  }
  fmt::print("\n");
  const std::vector<std::string> sentences = advice(r);
  for (const std::string& sentence : sentences) fmt::print("- {}\n", sentence);
  if (sentences.empty()) fmt::print("Nothing here is slower than it need be.\n");
}

Json json_of(const Rates& rates) {
  return {{"openblas", rates.openblas}, {"ours", rates.ours}, {"used", rates.used}};
}

void print_json(const MachineReport& r) {
  auto text = [](const std::optional<std::string>& value) { return value ? Json(*value) : Json(nullptr); };
  const Json json = {
      {"schema", 1},
      {"processor", r.processor},
      {"processors", r.processors},
      {"threads", r.threads},
      {"environment",
       {{"TAPEHEAD_THREADS", text(r.threads_variable)},
        {"TAPEHEAD_ARCH", text(r.arch_variable)},
        {"OPENBLAS_CORETYPE", text(r.core_variable)}}},
      {"vectors", {{"in_use", r.vectors_in_use}, {"available", r.vectors_available}}},
      {"blas", {{"library", r.blas_version}, {"kernels", r.blas_core}, {"level", r.blas_level}}},
      {"optimized", r.optimized},
      {"load", r.load},
      {"flops_a_second",
       {{"product_f32", json_of(r.f32)},
        {"product_f64", json_of(r.f64)},
        {"attention_forward", r.attention_forward},
        {"attention_forward_backward", r.attention_forward_backward},
        {"attention_forward_all_threads", r.attention_all_threads}}},
      {"attention_share_of_product",
       {{"forward", share(r.attention_forward, r.f32)},
        {"forward_backward", share(r.attention_forward_backward, r.f32)}}},
      {"advice", advice(r)}};
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

MachineReport examine_machine() {
  MachineReport report;
  report.processor = processor_name();
  report.processors = usable_processors();
  report.threads = thread_count();
  report.threads_variable = variable("TAPEHEAD_THREADS");
  report.arch_variable = variable("TAPEHEAD_ARCH");
  report.core_variable = variable("OPENBLAS_CORETYPE");
  report.vectors_in_use = kernels::name_of(kernels::arch_in_use());
  for (const Arch arch : {Arch::baseline, Arch::avx2, Arch::avx512}) {
    if (kernels::processor_has(arch)) report.vectors_available.emplace_back(kernels::name_of(arch));
  }
  report.blas_version = blas_version();
  report.blas_core = openblas_get_corename();
  report.blas_level = kernels::name_of(kernels::arch_of_blas_core(report.blas_core));
  report.optimized = optimized_build;
  report.load = load_average();
  openblas_set_num_threads(1);
  set_thread_count(1);
  report.f32 = product_rates<float>();
  report.f64 = product_rates<double>();
  measure_attention(report);
  return report;
}

std::vector<std::string> advice(const MachineReport& r) {
  std::vector<std::string> sentences;
  auto say = [&](std::string sentence) { sentences.push_back(std::move(sentence)); };
  const std::string& best = r.vectors_available.back();
  if (!r.optimized) {
    say("This build is not optimized: configure with -DCMAKE_BUILD_TYPE=Release, or --preset release.");
  }
  if (r.vectors_in_use != best) {
    say(fmt::format("TAPEHEAD_ARCH={} keeps the kernels from using {}: unset it.",
                    r.arch_variable.value_or(r.vectors_in_use), best));
  }
  if (best == "baseline") {
    say("This processor has no AVX2, so kernels run with vectors of 128 bits: a newer one would be several "
        "times as fast.");
  }
  const bool blas_behind = r.blas_level != best;
  if (blas_behind && r.core_variable) {
    say(fmt::format(
        "OPENBLAS_CORETYPE={} makes OpenBLAS run kernels for {}, which is less than this processor "
        "has: unset it.",
        *r.core_variable, r.blas_core));
  } else if (blas_behind) {
    say(fmt::format(
        "{} takes this processor for a {} and reaches {}. matmul and attention use tapehead's own product "
        "instead ({}), so nothing need be done here; for other programs set OPENBLAS_CORETYPE={}.",
        r.blas_version, r.blas_core, giga(r.f32.openblas), giga(r.f32.used),
        best == "avx512" ? "SkylakeX" : "Haswell"));
  }
  for (const auto& [type, rates] : {std::pair{"float", &r.f32}, std::pair{"double", &r.f64}}) {
    const double most = std::max(rates->openblas, rates->ours);
    if (rates->used < 0.8 * most) {
      say(fmt::format(
          "matmul of {} gives {} where {} were measured: the machine may be busy; run this again.", type,
          giga(rates->used), giga(most)));
    }
  }
  if (r.threads < r.processors) {
    say(fmt::format("{} of {} processors are used: {}.", r.threads, r.processors,
                    r.threads_variable ? "TAPEHEAD_THREADS=" + *r.threads_variable + " says so; unset it"
                                       : "set TAPEHEAD_THREADS for more"));
  }
  if (r.threads > r.processors) {
    say(fmt::format("{} threads share {} processor{}: TAPEHEAD_THREADS={} would be faster.", r.threads,
                    r.processors, r.processors == 1 ? "" : "s", r.processors));
  }
  if (r.load > r.processors + 0.5) {
    say(
        fmt::format("Other work is running here (load {:.1f} on {} processor{}), so all rates above are too "
                    "low.",
                    r.load, r.processors, r.processors == 1 ? "" : "s"));
  }
  const double least = 0.6;  // of the best product; 0.85 and more on processors with AVX-512
  if (r.optimized && share(r.attention_forward, r.f32) < least) {
    say(fmt::format("Attention runs at {:.2f} of the best product's rate, where 0.8 is usual: {}.",
                    share(r.attention_forward, r.f32),
                    r.vectors_in_use == best ? "the machine may be busy" : "the vectors in use are narrow"));
  }
  return sentences;
}

void doctor(const DoctorSettings& settings) {
  const MachineReport report = examine_machine();
  settings.json ? print_json(report) : print_text(report);
  flush_output();
}

}  // namespace tapehead::tools
