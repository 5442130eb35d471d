#include "models/families/family.h"

#include <algorithm>

namespace minfer {

// Each in a file of its name.
const Family& glm4_moe();
const Family& gpt2();
const Family& llama();
const Family& mistral();
const Family& mixtral();
const Family& olmoe();
const Family& phi3();
const Family& qwen2();
const Family& qwen2_moe();
const Family& qwen3();
const Family& qwen3_moe();
const Family& smollm3();

namespace {

constexpr const Family& (*kFamilies[])() = {llama,     mistral,   mixtral, gpt2,
                                            qwen2,     qwen3,     smollm3, phi3,
                                            qwen2_moe, qwen3_moe, olmoe,   glm4_moe};

// The family whose `field` is `value`; `key` is where the file says it.
const Family& find(std::string_view Family::*field, const std::string& key,
                   std::string_view value) {
  std::string known;
  std::string_view last;
  for (const auto& family : kFamilies) {
    const std::string_view name = family().*field;
    if (name.empty()) continue;
    if (name == value) return family();
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
  const Family& first = find(&Family::gguf_architecture, key, metadata.text(key));
  const std::string n_experts = cat(first.gguf_architecture, ".expert_count");
  const bool has_experts = metadata.integer_or(n_experts, 0, 0, int64_t{1} << 31) > 0;
  const auto reads = [&](const Family* other) {
    return other->gguf_architecture == first.gguf_architecture &&
           other->experts_key.empty() != has_experts;
  };
  const std::vector<const Family*> all = all_families();
  const auto found = std::ranges::find_if(all, reads);
  const Family& family = found == all.end() ? first : **found;
  MINFER_CHECK(family.read_gguf != nullptr, "family ", family.name, " before that of its files");
  return family;
}

const Family& family_of(const ModelSpec& spec) {
  return find(&Family::name, "family", spec.family);
}

}  // namespace minfer
