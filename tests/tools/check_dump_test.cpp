#include <tools/check/dump.h>

#include <string>
#include <vector>

#include <tapehead/nn/npy.h>
#include <tapehead/nn/safetensors.h>
#include <tools/check/tensor_names.h>

#include "support/files.h"

namespace tapehead::check {
namespace {

class CheckDump : public FilesTest {
 protected:
  static Array<double> ramp(const Shape& shape) { return Array<double>::arange(shape.size()).reshape(shape); }
  // A dump of a file with empty tensors of these names.
  Dump named(const std::vector<std::string>& names, const std::map<std::string, std::string>& asked = {}) {
    SafetensorsWriter writer;
    for (const std::string& name : names) writer.add(name, ramp({2}));
    writer.write(path());
    return open_dump(path(), asked);
  }
  static std::string given(const Dump& dump, std::string_view name) {
    const DumpTensor* tensor = dump.find(name);
    return tensor ? tensor->given_name : "";
  }
};

// ---- Names

TEST(CheckNames, OfTheFormatAreThemselves) {
  for (const std::string_view name : format_names()) EXPECT_EQ(name_of_format(name), name);
  for (const char* name : {"grad_query", "grad_w_out", "grad_sink", "query_after", "value_after"}) {
    EXPECT_TRUE(is_format_name(name)) << name;
    EXPECT_EQ(name_of_format(name), name);
  }
}

TEST(CheckNames, OfOtherProgramsMeanTheSame) {
  const std::pair<const char*, const char*> pairs[] = {
      {"q", "query"},
      {"K", "key"},
      {"v", "value"},
      {"query_states", "query"},
      {"out", "output"},
      {"o", "output"},
      {"attn_output", "output"},
      {"context_layer", "output"},
      {"attn_weights", "weights"},
      {"softmax_lse", "lse"},
      {"attn_mask", "mask"},
      {"dq", "grad_query"},
      {"d_k", "grad_key"},
      {"v.grad", "grad_value"},
      {"q_grad", "grad_query"},
      {"grad_q", "grad_query"},
      {"dout", "upstream"},
      {"do", "upstream"},
      {"grad_output", "upstream"},
      {"alibi_slopes", "slopes"},
      {"dbias", "grad_bias"},
      {"sinks", "sink"},
      {"cache_seqlens", "key_lengths"},
      {"cu_seqlens", "cu_seqlens_q"},
      {"param.q_proj_weight", "w_query"},
      {"grad_param.out_proj.bias", "grad_b_out"},
      {"k_after", "key_after"},
      {"qkv", "projection"},
      {"dqkv", "grad_projection"},
      {"grad_query_unrotated", "grad_query"},
  };
  for (const auto& [given, name] : pairs) EXPECT_EQ(name_of_format(given), name) << given;
}

// A gradient of weights is dP inside of attention, and is not what was fed back into them.
TEST(CheckNames, ThatSayNothingStayUnnamed) {
  for (const char* given : {"", "foo", "d", "grad_", "grad_foo", "dp", "grad_weights", "foo_after", "_after",
                            "mask_after", "quer", "query2"}) {
    EXPECT_EQ(name_of_format(given), "") << given;
  }
}

TEST_F(CheckDump, GivesNamesOfTheFormatAndKeepsTheGivenOnes) {
  const Dump dump = named({"q", "attn_out", "key", "weird"});
  EXPECT_EQ(given(dump, "query"), "q");
  EXPECT_EQ(given(dump, "output"), "attn_out");
  EXPECT_EQ(given(dump, "key"), "key");
  EXPECT_EQ(dump.find("weird"), nullptr);
  EXPECT_EQ(dump.tensors.size(), 4u);
}

TEST_F(CheckDump, PrefersTheNameOfTheFormatToAnother) {
  const Dump dump = named({"q", "query"});
  EXPECT_EQ(given(dump, "query"), "query");
}

TEST_F(CheckDump, PrefersWhatWasAskedFor) {
  const Dump dump = named({"out", "ctx", "output"}, {{"output", "ctx"}});
  EXPECT_EQ(given(dump, "output"), "ctx");
}

TEST_F(CheckDump, RefusesTwoTensorsThatMayBeTheSame) {
  const std::string message = message_of([&] { named({"out", "ctx"}); });
  for (const char* part : {"file", "out", "ctx", "--name output="})
    EXPECT_TRUE(has(message, part)) << message;
}

TEST_F(CheckDump, RefusesNamesThatCannotBeGiven) {
  EXPECT_TRUE(has(message_of([&] { named({"a"}, {{"output", "b"}}); }), "b: no such tensor"));
  EXPECT_TRUE(has(message_of([&] { named({"a"}, {{"outptu", "a"}}); }), "outptu"));
  EXPECT_TRUE(has(message_of([&] { named({"a"}, {{"output", "a"}, {"query", "a"}}); }), "cannot be both"));
}

// ---- Numbers

TEST_F(CheckDump, ReadsEveryTypeWidened) {
  for (const std::string type : {"F64", "F32", "F16", "BF16"}) {
    SafetensorsWriter().add("q", ramp({2, 3}), type).metadata("scale", "0.5").write(path());
    const Dump dump = open_dump(path());
    const DumpTensor& query = *dump.find("query");
    EXPECT_EQ(query.shape, (Shape{2, 3}));
    EXPECT_TRUE(same_bits(query.read(), ramp({2, 3}))) << type;
    EXPECT_EQ(dump.settings, (std::map<std::string, std::string>{{"scale", "0.5"}}));
  }
  SafetensorsWriter()
      .add("mask", Array<bool>::of({true, false}))
      .add("key_lengths", Array<Index>::of({3, 4}))
      .write(path());
  const Dump dump = open_dump(path());
  EXPECT_EQ(dump.find("mask")->type, "bool");
  EXPECT_TRUE(same_bits(dump.find("mask")->read(), Array<double>::of({1, 0})));
  EXPECT_EQ(dump.find("key_lengths")->type, "i64");
  EXPECT_TRUE(same_bits(dump.find("key_lengths")->read(), Array<double>::of({3, 4})));
}

TEST_F(CheckDump, ReadsAFolder) {
  fs::create_directories(path("dump"));
  write_npy(path("dump/q.npy"), ramp({2, 3}), {.fortran_order = true});
  write_npy(path("dump/mask.npy"), Array<bool>::of({true, false}));
  put(path("dump/spec.json"), R"({"scale": 0.25, "causal": "top-left", "heads": 2, "softcap": null})");
  put(path("dump/readme.txt"), "not a tensor");
  const Dump dump = open_dump(path("dump"));
  EXPECT_EQ(dump.tensors.size(), 2u);
  EXPECT_EQ(dump.find("query")->type, "f64");
  EXPECT_TRUE(same_bits(dump.find("query")->read(), ramp({2, 3})));
  EXPECT_EQ(dump.find("mask")->type, "bool");
  EXPECT_EQ(dump.settings,
            (std::map<std::string, std::string>{
                {"scale", "0.25"}, {"causal", "top-left"}, {"heads", "2"}, {"softcap", "none"}}));
}

TEST_F(CheckDump, IsReadAsItWasWritten) {
  Dump dump;
  dump.add("query", ramp({2, 3}), "f32");
  dump.add("mask", Array<double>::of({1, 0}), "bool");
  dump.add("key_lengths", Array<double>::of({5, 7}), "i64");
  dump.add("key", ramp({4}), "bf16");
  dump.settings = {{"scale", "0.1"}, {"causal", "offset -3"}};
  for (const std::string name : {"dump.safetensors", "folder"}) {
    write_dump(path(name), dump);
    const Dump read = open_dump(path(name));
    EXPECT_EQ(read.settings, dump.settings);
    ASSERT_EQ(read.tensors.size(), dump.tensors.size());
    for (const DumpTensor& tensor : dump.tensors) {
      EXPECT_TRUE(same_bits(read.find(tensor.name)->read(), tensor.read())) << name << " " << tensor.name;
      const bool in_float = name == "folder" && tensor.type == "bf16";  // which .npy has no word for
      EXPECT_EQ(read.find(tensor.name)->type, in_float ? "f32" : tensor.type);
    }
  }
}

// ---- Files that are no dumps

TEST_F(CheckDump, RefusesWhatCannotBeRead) {
  EXPECT_TRUE(has(message_of([&] { open_dump(path("missing")); }), "cannot be opened"));
  put(path(), "rubbish");
  EXPECT_TRUE(has(message_of([&] { open_dump(path()); }), "too few"));
  fs::create_directories(path("empty"));
  EXPECT_TRUE(has(message_of([&] { open_dump(path("empty")); }), "no .npy file"));
  put(path("empty/q.npy"), "rubbish");
  EXPECT_TRUE(has(message_of([&] { open_dump(path("empty")); }), "q.npy"));
}

TEST_F(CheckDump, RefusesASpecThatIsNoSettings) {
  fs::create_directories(path("dump"));
  write_npy(path("dump/q.npy"), ramp({2}));
  const auto message = [&](const std::string& spec) {
    put(path("dump/spec.json"), spec);
    return message_of([&] { open_dump(path("dump")); });
  };
  const std::pair<std::string, const char*> specs[] = {
      {"", "not JSON"},
      {"rubbish", "not JSON"},
      {"[1, 2]", "object"},
      {"3", "object"},
      {R"({"scale": [1]})", "spec.json"},
      {R"({"scale": {"a": 1}})", "holds others"},
      {R"({"scale": 1, "scale": 2})", "twice"},
      {R"({"scale": 1e999})", "not JSON"},
      {"{\"\xFF\": 1}", "not JSON"},
      {std::string(200'000, '['), "spec.json"},
      {R"({"a":)" + std::string(200'000, '{'), "spec.json"},
      {std::string(2'000'000, ' '), "2000000 bytes"},
  };
  for (const auto& [spec, part] : specs) {
    const std::string text = message(spec);
    EXPECT_TRUE(has(text, part) && has(text, "spec.json")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 600u);
  }
}

}  // namespace
}  // namespace tapehead::check
