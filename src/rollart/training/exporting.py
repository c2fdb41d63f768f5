"""Exporting: the policy as a Hugging Face model directory, whoever trained it on how many ranks.

    config.json, model*.safetensors, tokenizer files   the model, adapters merged; for anything
    adapter/                                           the adapters alone, as peft reads them

A sharded policy is written by its ranks, each a file of whole tensors that were gathered one at a
time, so no rank ever holds more than its part of the model and one tensor.
"""

import shutil
from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoTokenizer

from rollart.training.drafts import Draft, drafted
from rollart.training.policy import Policy
from rollart.training.tensor_files import Division

ADAPTER_DIRECTORY = "adapter"
ADAPTER_STEM = "adapter_model"
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


def export_model(policy: Policy, directory: Path) -> None:
    """Write the policy as a model directory, replacing the one of that name only at the end."""
    with drafted(directory, world=policy.world, what="model") as draft:
        write_model(policy, draft)


def write_model(policy: Policy, draft: Draft) -> None:
    """Write weights, configuration and tokenizer into a draft."""
    if policy.is_plain:
        draft.first(lambda: policy.model.save_pretrained(draft.path))
    else:
        _write_parts(policy, draft)
    draft.first(lambda: _copy_tokenizer(policy.source, draft.path))


def _write_parts(policy: Policy, draft: Draft) -> None:
    """Write what transformers would, each rank its part; and the adapters, if there are any."""
    model, tuning, rank = policy.model, policy.tuning, policy.world.rank
    stored = {
        name: value
        for key, value in (*model.named_parameters(), *model.named_buffers())
        if (name := tuning.model_name(key)) is not None
    }
    kept = {tuning.model_name(key) for key in model.state_dict()}
    sizes = {name: value.numel() for name, value in stored.items() if name in kept}
    division = Division(sizes, ranks=policy.world.size)
    own = division.take(tuning.weights(model), rank=rank)
    draft.each(lambda: division.write(own, draft.path, "model", rank))
    total_bytes = sum(size * stored[name].element_size() for name, size in sizes.items())

    def describe() -> None:
        division.write_index(draft.path, "model", total_bytes=total_bytes)
        model.config.save_pretrained(draft.path)
        if model.can_generate():
            model.generation_config.save_pretrained(draft.path)

    draft.first(describe)
    if tuning.has_adapters:
        _write_adapters(policy, draft)


def _write_adapters(policy: Policy, draft: Draft) -> None:
    matrices = {
        name: value.cpu().contiguous() for name, value in policy.tuning.adapter(policy.model)
    }
    directory = draft.path / ADAPTER_DIRECTORY

    def write() -> None:
        directory.mkdir()
        save_file(matrices, directory / f"{ADAPTER_STEM}.safetensors", metadata={"format": "pt"})
        policy.tuning.write_config(directory, base=policy.source)

    draft.first(write)


def _copy_tokenizer(source: str, target: Path) -> None:
    """Put the source's tokenizer files beside the weights."""
    if Path(source).is_dir():
        for pattern in _TOKENIZER_FILES:
            for path in sorted(Path(source).glob(pattern)):
                if path.is_file():
                    shutil.copyfile(path, target / path.name)
    else:
        AutoTokenizer.from_pretrained(source).save_pretrained(target)
