#include "models/families/family.h"

#include <algorithm>

namespace minfer {

// Each in a file of its name.
const Family& cohere();
const Family& cohere2();
const Family& falcon();
const Family& gemma();
const Family& gemma2();
const Family& gemma3();
const Family& glm4_moe();
const Family& gpt2();
const Family& gpt_neox();
const Family& gpt_oss();
const Family& granite();
const Family& llama();
const Family& mistral();
const Family& mixtral();
const Family& olmo2();
const Family& olmo3();
const Family& olmoe();
const Family& phi();
const Family& phi3();
const Family& qwen2();
const Family& qwen2_moe();
const Family& qwen3();
const Family& qwen3_moe();
const Family& smollm3();
const Family& stablelm();
const Family& starcoder2();

namespace {

constexpr const Family& (*kFamilies[])() = {
    mixtral,   llama, mistral,  gpt2,   qwen2,      qwen3,  smollm3, phi3,   qwen2_moe,
    qwen3_moe, olmoe, glm4_moe, gemma,  gemma2,     gemma3, olmo3,   olmo2,  granite,
    gpt_neox,  phi,   stablelm, falcon, starcoder2, cohere, cohere2, gpt_oss};

bool takes_all(const Family&) { return true; }

// Whether a key is there and not 0.
bool says(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.all().find(key);
  if (found == metadata.all().end()) return false;
  const auto is = [&](const Metadata::Value& value) { return found->second == value; };
  return !is(int64_t{0}) && !is(uint64_t{0});
}

// The first family whose `field` is `value` and that `takes` the file; `key` is where it says so.
template <typename Takes = bool (*)(const Family&)>
const Family& find(std::string_view Family::*field, const std::string& key, std::string_view value,
                   const Takes& takes = takes_all) {
  std::string known;
  std::string_view last;
  for (const auto& family : kFamilies) {
    const std::string_view name = family().*field;
    if (name.empty()) continue;
    if (name == value && takes(family())) return family();
    if (name != last) known += cat(known.empty() ? "" : ", ", name);
    last = name;
  }
  throw Error(ErrorKind::Input, cat("key ", key, " is \"", shortened(std::string(value)),
                                    "\": not supported (supported: ", known, ")"));
}

}  // namespace

bool WeightNames::has_module(WeightRole role) const {
  return std::ranges::count(modules, role, &decltype(modules)::value_type::first) > 0;
}

std::string_view WeightNames::module(WeightRole role) const {
  const auto found = std::ranges::find(modules, role, &decltype(modules)::value_type::first);
  MINFER_CHECK(found != modules.end(), "a family without names for role ", int(role));
  return found->second;
}

std::vector<const Family*> all_families() {
  std::vector<const Family*> families;
  for (const auto& family : kFamilies) families.push_back(&family());
  return families;
}

const Family& family_of_hf(const Metadata& config) {
  const std::string key = "architectures";
  // Older files have the model type alone.
  if (!config.has(key)) {
    return find(&Family::hf_model_type, "model_type", config.text("model_type"));
  }
  const std::vector<std::string>& names = config.texts(key);
  MINFER_REQUIRE(Input, names.size() == 1, "key architectures has ", names.size(),
                 " entries, expected 1");
  return find(&Family::hf_class, key, names.front());
}

const Family& family_of_gguf(const Metadata& metadata) {
  const std::string key = "general.architecture";
  const std::string& name = metadata.text(key);
  const Family& family = find(&Family::gguf_architecture, key, name, [&](const Family& each) {
    return each.gguf_key.empty() || says(metadata, cat(name, ".", each.gguf_key));
  });
  MINFER_CHECK(family.read_gguf != nullptr, "family ", family.name, " before that of its files");
  return family;
}

const Family& family_of(const ModelSpec& spec) {
  return find(&Family::name, "family", spec.family);
}

}  // namespace minfer
