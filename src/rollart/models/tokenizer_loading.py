"""Reading the tokenizer of a model's directory, without what models need.

A tokenizer of the general class is read as one. That loads no torch, so a process that only renders
conversations is there in a fraction of the time; others are read by the class their model has.
"""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from rollart.errors import ModelError
from rollart.models.files import check_tokenizer

_GENERAL = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""What the general class is called in `tokenizer_config.json`, by version."""


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
