#!/usr/bin/env python3
"""Writes tests/fixtures/chat_prompts.json: what transformers' apply_chat_template makes of chat
templates in the forms that published models have. Needs jinja2."""
import json
import pathlib

from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML_LOOP = (
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEMPLATES = {
    # SmolLM2, Qwen2: the default system message inside of the loop
    "chatml-smollm2": (
        "chatml",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n' }}{% endif %}" + CHATML_LOOP,
    ),
    "chatml-qwen2": (
        "chatml",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
        + CHATML_LOOP,
    ),
    # Qwen2.5 without tools: statements on lines of their own, double quotes elsewhere
    "chatml-qwen2.5": (
        "chatml",
        "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == "
        "'system' %}\n        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are "
        "Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}\n    {%- endif %}\n"
        "{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|im_start|>system"
        "\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n        {{- "
        "'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
        "assistant.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n{%- for message in messages %}"
        "\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not "
        "loop.first) %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + "
        "'<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}"
        "\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    ),
    # The default message in a variable
    "chatml-variable": (
        "chatml",
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages "
        "%}{% set system_message = \"You're a careful assistant.\" %}{% endif %}"
        "{{ '<|im_start|>system\\n' + system_message + '<|im_end|>\\n' }}"
        "{% for message in loop_messages %}" + CHATML_LOOP,
    ),
    # No default message, BOS in front
    "chatml-bos": ("chatml", "{{ bos_token }}{% for message in messages %}" + CHATML_LOOP),
    # Llama 2: the default message is there, but switched off
    "llama2": (
        "llama2",
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set "
        "system_message = messages[0]['content'] %}{% elif false == true and not '<<SYS>>' in "
        "messages[0]['content'] %}{% set loop_messages = messages %}{% set system_message = 'You are "
        "a helpful, respectful and honest assistant.' %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if "
        "(message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must "
        "alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content"
        " = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
        "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == "
        "'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    ),
    "llama3": (
        "llama3",
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
        " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant"
        "<|end_header_id|>\n\n' }}{% endif %}",
    ),
    # Llama 3.1: two dates in a system message of its own, even where there is none else
    "llama3.1": (
        "llama3",
        "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul "
        "2024\" %}\n{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set "
        "system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n"
        "{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n{{- "
        "\"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{{- \"Cutting Knowledge Date: "
        "December 2023\\n\" }}\n{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- "
        "system_message }}\n{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n        {{- "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
        "trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- "
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    ),
    "zephyr": (
        "zephyr",
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
        "message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ "
        "'<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' "
        "%}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last "
        "and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    ),
    "mistral-v0.1": (
        "mistral",
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' "
        "+ message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
        "message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}",
    ),
    "mistral-v1": (
        "mistral",
        "{%- if messages[0][\"role\"] == \"system\" %}\n    {%- set system_message = messages[0]["
        "\"content\"] %}\n    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set "
        "loop_messages = messages %}\n{%- endif %}\n{{- bos_token }}\n{%- for message in "
        "loop_messages %}\n    {%- if message['role'] == 'user' %}\n        {%- if loop.first and "
        "system_message is defined %}\n            {{- ' [INST] ' + system_message + '\\n\\n' + "
        "message['content'] + ' [/INST]' }}\n        {%- else %}\n            {{- ' [INST] ' + "
        "message['content'] + ' [/INST]' }}\n        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n",
    ),
    "mistral-v3": (
        "mistral",
        "{%- if messages[0][\"role\"] == \"system\" %}{%- set system_message = messages[0]["
        "\"content\"] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = "
        "messages %}{%- endif %}{{- bos_token }}{%- for message in loop_messages %}{%- if "
        "message[\"role\"] == \"user\" %}{%- if loop.last and system_message is defined %}{{- "
        "\"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}"
        "{%- else %}{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}{%- endif %}{%- endif %}"
        "{%- endfor %}",
    ),
}
USERS = ["Hello, who are you?", "  two\nlines \n", "</s> <|im_end|>[INST]"]
SYSTEMS = [None, "Be brief.", " Answer in\nFrench. "]
# These have no place for a system message: ours is the one that later versions of the family have.
NO_SYSTEM = {"mistral-v0.1"}


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    cases = []
    for name, (family, source) in TEMPLATES.items():
        template = environment.from_string(source)
        prompts = []
        for user in USERS:
            for system in SYSTEMS[: 1 if name in NO_SYSTEM else None]:
                messages = [{"role": "user", "content": user}]
                if system is not None:
                    messages.insert(0, {"role": "system", "content": system})
                text = template.render(
                    messages=messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=True
                )
                prompts.append({"user": user, "system": system, "text": text})
        cases.append({"name": name, "family": family, "template": source, "prompts": prompts})
    path = pathlib.Path(__file__).parent.parent / "tests/fixtures/chat_prompts.json"
    path.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


main()
