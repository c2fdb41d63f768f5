"""Tokenizers with the chat templates of well-known families, built on the tiny tokenizer."""

from transformers import PreTrainedTokenizerFast

from rollart.models.tokenizer import build_tokenizer

CORPUS = (
    "Reach goal, avoid holes: up, down, left or right",
    "holes b2 c3 goal d4",
    *("up", "down", "left", "right", "a1", "a2", "b1", "b2", " b1", " a2"),
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(CORPUS)


def chatml_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    return _with(template, ["<|im_start|>", "<|im_end|>"], eos_token="<|im_end|>")


def llama3_tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin|>", "<|eos|>"]
    return _with(LLAMA3, tokens, bos_token="<|begin|>", eos_token="<|eos|>")


def _with(template: str, tokens: list[str], **roles: str) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": tokens} | roles)
    tokenizer.chat_template = template
    return tokenizer
