"""Tokenizers: builds a small byte-level one for tiny models, loads those of model directories.

The built tokenizer encodes every UTF-8 text and decodes it unchanged, because the 256 bytes are its
alphabet. Digits and punctuation are always tokens of their own (or with the space before them);
frequent words of the corpus, and names such as `b2`, become one token. The same corpus gives the
same tokenizer. Its chat template is `<|system|>…<|user|>…<|assistant|>…<|end|>`: only the
assistant's message is closed, since no other end has to be sampled.

Loading a tokenizer of the general class needs no torch, so a process that only renders
conversations starts in a fraction of the time; others are loaded by their model's class.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_letters
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from rollart.errors import ModelError
from rollart.models.files import check_tokenizer

PAD, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PIECES = r" ?[a-z][0-9](?![\p{L}\p{N}])| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s"


def build_tokenizer(
    corpus: Sequence[str], *, vocabulary: int = 512, context: int = 2048
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `corpus`, the texts it will mostly encode."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = Steps(
        [
            Split(Regex(_PIECES), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=1,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*corpus, " ".join(ascii_letters)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )


_GENERAL = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names of the general class in `tokenizer_config.json`, by version of transformers."""


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Return the directory's tokenizer."""
    check_tokenizer(directory)
    try:
        tokenizer: Any = _read(directory)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{directory}: the tokenizer cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        name = type(tokenizer).__name__
        raise ModelError(f"{directory}: {name} is not a fast tokenizer; convert it first")
    return tokenizer


def _read(directory: Path) -> Any:
    settings = directory / "tokenizer_config.json"
    named: Any = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    if named.get("tokenizer_class") in _GENERAL and (directory / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(directory)
    from transformers import AutoTokenizer  # noqa: PLC0415 loads torch

    return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
