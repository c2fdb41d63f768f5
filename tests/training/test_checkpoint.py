import json
import os
import resource
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from training_samples import random_groups, trainer_values, write_checkpoint
from transformers import AutoModelForCausalLM

from rollart.errors import ModelError, StorageError
from rollart.training.batch import encode
from rollart.training.trainer import TorchTrainer

MEASURED = ("loss", "policy_loss", "kl", "entropy", "grad_norm", "learning_rate", "ratio_max")
NOBODY = 65534


def make_trainer(checkpoint: Path, **options) -> TorchTrainer:
    values = {
        "learning_rate": 1e-2,
        "warmup_steps": 5,
        "weight_decay": 0.1,
        "minibatches": 2,
        "kl_coefficient": 0.01,
        **options,
    }
    return TorchTrainer(model=str(checkpoint), **trainer_values(values))


def train(trainer: TorchTrainer, seeds: range) -> list[dict[str, float]]:
    reports = [trainer.step(encode(random_groups(seed))) for seed in seeds]
    return [{name: report.metrics[name] for name in MEASURED} for report in reports]


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(checkpoint, tmp_path):
    whole = make_trainer(checkpoint)
    expected = train(whole, range(6))
    first = make_trainer(checkpoint)
    found = train(first, range(3))
    first.save(str(tmp_path / "step-3"))
    second = make_trainer(checkpoint)
    assert second.load(str(tmp_path / "step-3")) == 3
    found += train(second, range(3, 6))
    assert found == expected
    ours, theirs = second._model.state_dict(), whole._model.state_dict()
    for name, value in ours.items():
        np.testing.assert_array_equal(value.numpy(), theirs[name].numpy())


def test_a_checkpoint_is_a_usable_model_with_its_tokenizer_files(checkpoint, tmp_path):
    trainer = make_trainer(checkpoint)
    train(trainer, range(1))
    trainer.save(str(tmp_path / "deep" / "last"))
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["last"]
    assert sorted(path.name for path in (tmp_path / "deep" / "last").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
        "trainer.json",
    ]
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "deep" / "last").state_dict()
    for name, value in trainer._model.state_dict().items():
        np.testing.assert_array_equal(stored[name].numpy(), value.numpy())


def test_saving_again_replaces_the_checkpoint_of_that_name(checkpoint, tmp_path):
    trainer = make_trainer(checkpoint)
    trainer.save(str(tmp_path / "last"))
    train(trainer, range(2))
    trainer.save(str(tmp_path / "last"))
    assert make_trainer(checkpoint).load(str(tmp_path / "last")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_checkpoint_set_aside_by_a_crash_between_renames_is_found(checkpoint, tmp_path):
    make_trainer(checkpoint).save(str(tmp_path / "last"))
    (tmp_path / "last").rename(tmp_path / ".last.old")
    assert make_trainer(checkpoint).load(str(tmp_path / "last")) == 0


def test_a_checkpoint_of_another_shape_is_refused_with_both_shapes(checkpoint, tmp_path):
    make_trainer(write_checkpoint(tmp_path / "wide", width=32)).save(str(tmp_path / "last"))
    trainer = make_trainer(checkpoint)
    before = {name: value.clone() for name, value in trainer._model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        trainer.load(str(tmp_path / "last"))
    assert str(caught.value) == (
        f"the checkpoint {tmp_path / 'last'} is of another model: its model.embed_tokens.weight "
        "is 40×32, this model's is 40×16"
    )
    assert all(value.equal(before[name]) for name, value in trainer._model.state_dict().items())


def test_a_checkpoint_of_another_architecture_is_refused_by_name(checkpoint, tmp_path):
    make_trainer(checkpoint).save(str(tmp_path / "last"))
    path = tmp_path / "last" / "trainer.json"
    record = json.loads(path.read_text())
    record["fingerprint"]["architecture"] = "LlamaForCausalLM"
    path.write_text(json.dumps(record))
    with pytest.raises(ModelError, match="LlamaForCausalLM, this is Qwen3ForCausalLM"):
        make_trainer(checkpoint).load(str(tmp_path / "last"))


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [cut_in_half, Path.unlink], ids=["cut", "missing"])
@pytest.mark.parametrize(
    "name", ["trainer.json", "optimizer.safetensors", "model.safetensors", "config.json"]
)
def test_a_missing_or_damaged_file_is_refused_and_nothing_is_restored(
    checkpoint, tmp_path, name, damage
):
    saved = make_trainer(checkpoint)
    train(saved, range(1))
    saved.save(str(tmp_path / "last"))
    damage(tmp_path / "last" / name)
    trainer = make_trainer(checkpoint)
    with pytest.raises(ModelError, match=str(tmp_path / "last")):
        trainer.load(str(tmp_path / "last"))
    assert trainer.version == 0
    assert trainer._optimizer.state == {}


def test_a_directory_that_is_not_there_is_no_checkpoint(checkpoint, tmp_path):
    with pytest.raises(ModelError, match=r"is no checkpoint: it has no trainer\.json"):
        make_trainer(checkpoint).load(str(tmp_path / "nothing"))


def check_refusal(checkpoint: Path, directory: Path, fill: Callable[[], object]) -> None:
    trainer = make_trainer(checkpoint)
    trainer.save(str(directory))
    trainer.step(encode([]))
    fill()
    with pytest.raises(StorageError) as caught:
        trainer.save(str(directory))
    message = str(caught.value)
    assert message.startswith(f"cannot write the checkpoint {directory}: the disk is full (")
    assert f"bytes free in {directory.parent}); make room" in message
    assert sorted(path.name for path in directory.parent.glob(".*")) == []
    assert make_trainer(checkpoint).load(str(directory)) == 0


def test_a_full_disk_is_one_message_and_leaves_the_previous_checkpoint(checkpoint, tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=72k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    ballast = tmp_path / "ballast"
    try:
        check_refusal(checkpoint, tmp_path / "last", lambda: ballast.write_bytes(bytes(20_000)))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_size_limit_is_one_message_and_leaves_the_previous_checkpoint(checkpoint, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        check_refusal(
            checkpoint,
            tmp_path / "last",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard)),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def unprivileged():
    """Be nobody for a while where this is root, who may write anywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_directory_that_refuses_is_one_message(checkpoint, tmp_path):
    trainer = make_trainer(checkpoint)
    tmp_path.chmod(0o500)
    refused = pytest.raises(StorageError, match=r"cannot write the checkpoint.*Permission denied")
    with unprivileged(), refused:
        trainer.save(str(tmp_path / "last"))
    assert not list(tmp_path.glob("last*"))
