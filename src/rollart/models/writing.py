"""Checkpoint directories, written whole or not at all.

Everything is written to a sibling directory first and renamed when complete, so that a reader, a
second writer or a later run never meets half a checkpoint.
"""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from rollart.directories import replace_directory
from rollart.errors import StorageError


def save_checkpoint(
    model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, directory: Path
) -> None:
    """Write a normal Hugging Face checkpoint: configuration, safetensors, tokenizer."""
    logging.disable_progress_bar()
    with written_whole(directory) as target:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


@contextmanager
def written_whole(directory: Path) -> Generator[Path]:
    """Give a directory to write to; it becomes `directory` on leaving, or nothing does."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise StorageError(f"cannot write {directory}: {error}") from error
    try:
        yield draft
        draft.chmod(0o755)
        replace_directory(draft, directory)
    except (OSError, SafetensorError) as error:
        fix = "make room, or choose another directory"
        raise StorageError(f"cannot write {directory}: {error}; {fix}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
