"""Two ranks in real processes over gloo against one trainer in this one."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from rank_actor import RankActor
from training_samples import random_groups, trainer_values, write_checkpoint
from transformers import AutoModelForCausalLM

from rollart.cluster.local_host import EmbeddedHost, thread_env
from rollart.errors import ConfigError, GroupError, InvariantError, ModelError, StorageError
from rollart.training.batch import encode
from rollart.training.distributed.ranks import RankGroup, RankPlan
from rollart.training.distributed.rendezvous import LOOPBACK
from rollart.training.trainer import TorchTrainer
from rollart.weights.store import MemoryStore

MEASURED = (
    "loss",
    "policy_loss",
    "kl",
    "entropy",
    "clip_fraction",
    "ratio_max",
    "correction_mean",
    "grad_norm",
    "trained_tokens",
    "updates",
    "no_signal",
)
SMOOTH = {"learning_rate": 0.1, "eps": 1.0, "max_grad_norm": 0.0, "micro_batch_tokens": 40}
"""With eps 1 an update is as smooth as its gradient: equal weights mean equal gradients."""
LORA = {"rank": 4, "alpha": 8.0}

Call = Callable[..., Any]


class Two:
    """Calls on a group of two ranks."""

    def __init__(self, runner: asyncio.Runner, group: RankGroup) -> None:
        self.runner, self.group = runner, group

    def __call__(self, method: str, *args: Any) -> Any:
        result = self.runner.run(self.group.call(method, *args))
        if method == "make":
            self("join", self("meeting"))
        return result


@pytest.fixture(scope="module")
def two(checkpoint: Path) -> Iterator[Two]:
    with asyncio.Runner() as runner:
        host = EmbeddedHost(env=thread_env(1), grace_s=2.0)
        plan = RankPlan(
            options={"first": [str(checkpoint), SMOOTH]},
            addresses=[LOOPBACK] * 2,
            worker=RankActor,
            grace_s=2.0,
        )
        group = runner.run(RankGroup.start(host, plan))
        yield Two(runner, group)
        runner.run(group.close())
        runner.run(host.close())


class One:
    """The same calls on a trainer in this process."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        self._store = MemoryStore()
        self.trainer = TorchTrainer(model=str(model), **trainer_values(options), store=self._store)

    def __call__(self, method: str, *args: Any) -> Any:
        if method == "weights":
            return dict(self._store.fetch(self.trainer.publish()))
        return getattr(self.trainer, method)(*args)


def train(call: Call, batches: list[dict[str, Any]]) -> list[dict[str, float]]:
    reports = [call("step", batch) for batch in batches]
    return [{name: report.metrics[name] for name in MEASURED} for report in reports]


def some_batches(seeds: range) -> list[dict[str, Any]]:
    return [encode(random_groups(seed)) for seed in seeds]


def check_same(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)


def check_weights(found: dict[str, Any], expected: dict[str, Any], *, within: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=within, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"aggregation": "sequence_mean", "type": "rloo", "weight_decay": 0.1},
        {"aggregation": "constant", "type": "dr_grpo", "correction": "none"},
        {"kl_coefficient": 0.1, "entropy_coefficient": 0.05},
        {"minibatches": 3, "epochs": 2, "max_grad_norm": 0.1},
        {"recompute": True, "row_tokens": 1},
        {"offload": True},
        {"lora": LORA, "kl_coefficient": 0.1},
        {"lora": LORA, "recompute": True, "minibatches": 2},
    ],
    ids=lambda options: " ".join(options) or "default",
)
def test_two_ranks_train_as_one(checkpoint, two, options):
    options = {**SMOOTH, **options}
    batches = some_batches(range(4))
    plain = {name: value for name, value in options.items() if name not in ("offload", "recompute")}
    one = One(checkpoint, plain)
    two("make", str(checkpoint), options)
    check_same(train(two, batches), train(one, batches))
    check_weights(two("weights"), one("weights"))


def test_tied_embeddings_train_alike(two, tmp_path):
    model = write_checkpoint(tmp_path / "tied", tied=True)
    one = One(model, SMOOTH)
    two("make", str(model), SMOOTH)
    batches = some_batches(range(3))
    check_same(train(two, batches), train(one, batches))
    check_weights(two("weights"), one("weights"))
    two("export", str(tmp_path / "out"))
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    check_weights({name: value.numpy() for name, value in stored.items()}, one("weights"))


def test_a_rank_without_work_keeps_up(checkpoint, two):
    groups = random_groups(3, groups=1, members=2)
    alone = [[replace(groups[0][0], reward=1.0)]]
    quiet = [[replace(member, reward=1.0) for member in groups[0]]]
    batches = [encode(each) for each in (alone, [], quiet, groups)]
    options = {**SMOOTH, "type": "reinforce"}
    one = One(checkpoint, options)
    two("make", str(checkpoint), options)
    check_same(train(two, batches), train(one, batches))
    check_weights(two("weights"), one("weights"))


def test_a_mistake_all_ranks_see_leaves_the_group_whole(checkpoint, two):
    two("make", str(checkpoint), SMOOTH)
    batch = encode(random_groups(1))
    bad = {**batch, "tokens": batch["tokens"] + 1000}
    with pytest.raises(InvariantError, match="it was sampled by another model"):
        two("step", bad)
    assert two("step", batch).version == 1


def test_mixed_precision_stays_near(checkpoint, two):
    one = One(checkpoint, SMOOTH)
    two("make", str(checkpoint), {**SMOOTH, "mixed_precision": True})
    batches = some_batches(range(2))
    for mine, theirs in zip(train(two, batches), train(one, batches), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.1, abs=0.02)
    assert {value.dtype.name for value in two("weights").values()} == {"float32"}


@pytest.mark.parametrize("lora", [{}, LORA], ids=["all weights", "adapters"])
def test_a_checkpoint_moves_from_two_to_one_to_two(checkpoint, two, tmp_path, lora):
    options = {**SMOOTH, "warmup_steps": 9, "minibatches": 2, "kl_coefficient": 0.1, "lora": lora}
    batches = some_batches(range(6))
    whole = One(checkpoint, options)
    expected = train(whole, batches)
    two("make", str(checkpoint), options)
    check_same(train(two, batches[:2]), expected[:2])
    two("save", str(tmp_path / "second"))
    one = One(checkpoint, options)
    assert one("load", str(tmp_path / "second")) == 2
    check_same(train(one, batches[2:4]), expected[2:4])
    one("save", str(tmp_path / "fourth"))
    two("make", str(checkpoint), options)
    assert two("load", str(tmp_path / "fourth")) == 4
    check_weights(two("weights"), one("weights"), within=0)
    check_same(train(two, batches[4:]), expected[4:])


def test_a_sharded_checkpoint_is_a_hugging_face_model(checkpoint, two, tmp_path):
    two("make", str(checkpoint), SMOOTH)
    train(two, some_batches(range(1)))
    two("save", str(tmp_path / "last"))
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
        "optimizer.safetensors.index.json",
        "tokenizer.json",
        "trainer.json",
    ]
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "last").state_dict()
    check_weights({name: value.numpy() for name, value in stored.items()}, two("weights"), within=0)


def test_a_part_that_is_missing_is_refused_by_all_and_nothing_is_restored(
    checkpoint, two, tmp_path
):
    two("make", str(checkpoint), SMOOTH)
    train(two, some_batches(range(1)))
    two("save", str(tmp_path / "last"))
    (tmp_path / "last" / "model-00002-of-00002.safetensors").unlink()
    before = two("weights")
    train(two, some_batches(range(1, 2)))
    two("make", str(checkpoint), SMOOTH)
    fresh = two("weights")
    with pytest.raises(ModelError, match=r"model\.safetensors is missing or damaged"):
        two("load", str(tmp_path / "last"))
    check_weights(two("weights"), fresh, within=0)
    assert before.keys() == fresh.keys()


def test_a_refusing_disk_is_one_message_of_all_ranks(checkpoint, two, tmp_path):
    two("make", str(checkpoint), SMOOTH)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the checkpoint"):
        two("save", str(tmp_path / "file" / "last"))
    assert two("step", encode(random_groups(1))).version == 1


def test_adapters_are_served_merged_and_stored_as_peft_stores_them(checkpoint, two, tmp_path):
    options = {**SMOOTH, "lora": LORA}
    two("make", str(checkpoint), options)
    train(two, some_batches(range(2)))
    served = two("weights")
    base = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert served.keys() == base.state_dict().keys()
    np.testing.assert_array_equal(served["lm_head.weight"], base.lm_head.weight.detach().numpy())
    two("export", str(tmp_path / "out"))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    check_weights({name: value.numpy() for name, value in exported.items()}, served, within=0)
    tuned = PeftModel.from_pretrained(base, tmp_path / "out" / "adapter")
    adapter = two("adapter")
    assert len(adapter) == 2 * 2 * 7
    ids = torch.arange(12)[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(tuned(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-4)


def test_dropout_of_adapters_is_drawn_from_the_version(checkpoint):
    options = {**SMOOTH, "lora": {**LORA, "dropout": 0.5}}
    first, second = (One(checkpoint, options) for _ in range(2))
    for one in (first, second):
        train(one, some_batches(range(1)))
    torch.manual_seed(99)
    batches = some_batches(range(1, 3))
    assert train(first, batches) == train(second, batches)
    without = One(checkpoint, {**SMOOTH, "lora": LORA})
    train(without, some_batches(range(1)))
    assert train(without, batches) != train(first, batches)


def test_layers_that_are_not_there_are_refused_by_name(checkpoint):
    with pytest.raises(ConfigError, match=r"training\.lora\.targets = \['qproj'\]"):
        One(checkpoint, {"lora": {**LORA, "targets": ["qproj"]}})
    with pytest.raises(ConfigError, match="names a Embedding: only linear layers"):
        One(checkpoint, {"lora": {**LORA, "targets": ["embed_tokens"]}})
    with pytest.raises(ConfigError, match="there is no adapter"):
        One(checkpoint, {})("adapter")


def test_a_trainer_of_another_number_of_ranks_is_refused(checkpoint):
    with pytest.raises(ConfigError, match=r"training\.ranks = 2: the host made 1"):
        One(checkpoint, {"ranks": 2})
    rank = TorchTrainer(model=str(checkpoint), options={"ranks": 2}, rank=1, world_size=2)
    with pytest.raises(
        ConfigError, match="rendezvous = 'here': ranks meet at file://PATH or tcp://KEY@H"
    ):
        rank.join("here")


def test_a_killed_rank_ends_the_step_and_the_group_goes_on_from_its_checkpoint(
    checkpoint, two, tmp_path
):
    batches = some_batches(range(4))
    expected = train(One(checkpoint, SMOOTH), batches)
    two("make", str(checkpoint), SMOOTH)
    check_same(train(two, batches[:2]), expected[:2])
    two("save", str(tmp_path / "second"))
    victim = two.group.cluster.members[1].handle.process

    async def kill_amid_step() -> None:
        os.kill(victim.pid, signal.SIGSTOP)
        step = asyncio.create_task(two.group.call("step", batches[2]))
        await asyncio.sleep(0.3)
        victim.kill()
        await step

    with pytest.raises(GroupError, match="was killed by SIGKILL"):
        two.runner.run(kill_amid_step())
    assert two.runner.run(two.group.restart(str(tmp_path / "second"))) == 2
    check_same(train(two, batches[2:]), expected[2:])
