#include "models/chat/built_in_templates.h"

#include <array>
#include <utility>

#include "kernels/base/error.h"

namespace minfer {
namespace {

constexpr const char* kChatMlTemplate =
    R"({%- for message in messages -%}
{%- if message.role != 'system' or message.content -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

constexpr const char* kLlama2Template =
    R"({%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = '' -%}
{%- if message.content -%}
{%- set ns.system = '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' -%}
{%- endif -%}
{%- elif message.role == 'user' -%}
{{- bos_token + '[INST] ' + (ns.system + message.content).strip() + ' [/INST]' -}}
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{- ' ' + message.content.strip() + ' ' + eos_token -}}
{%- else -%}
{{- raise_exception('Only the roles system, user and assistant are supported') -}}
{%- endif -%}
{%- endfor -%})";

constexpr const char* kLlama3Template =
    R"({{- bos_token -}}
{%- for message in messages -%}
{%- if message.role != 'system' or message.content -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' -}}
{{- message.content.strip() + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%})";

constexpr const char* kZephyrTemplate =
    R"({%- for message in messages -%}
{%- if message.role != 'system' or message.content -%}
{{- '<|' + message.role + '|>\n' + message.content + eos_token + '\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%})";

constexpr const char* kMistralTemplate =
    R"({{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = message.content + '\n\n' if message.content else '' -%}
{%- elif message.role == 'user' -%}
{{- '[INST] ' + ns.system + message.content + ' [/INST]' -}}
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{- ' ' + message.content + eos_token -}}
{%- else -%}
{{- raise_exception('Only the roles system, user and assistant are supported') -}}
{%- endif -%}
{%- endfor -%})";

const std::array<std::pair<std::string, std::string>, 5> kTemplates = {
    {{"chatml", kChatMlTemplate},
     {"llama2", kLlama2Template},
     {"llama3", kLlama3Template},
     {"zephyr", kZephyrTemplate},
     {"mistral", kMistralTemplate}}};

}  // namespace

const std::string& built_in_template(const std::string& name) {
  for (const auto& [known, source] : kTemplates)
    if (name == known) return source;
  throw Error(ErrorKind::Usage, cat("chat template \"", shortened(name),
                                    "\" is unknown; known are chatml, llama2, llama3, zephyr, "
                                    "mistral"));
}

}  // namespace minfer
