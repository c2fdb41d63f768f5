import pytest

from rollart.errors import ConfigError
from rollart.training.options import LoraOptions, TrainingOptions


def test_the_defaults_are_valid_and_betas_from_json_become_a_tuple():
    assert TrainingOptions(betas=[0.9, 0.99]) == TrainingOptions(betas=(0.9, 0.99))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("advantage", "ppo", "must be one of grpo, dr_grpo, rloo, reinforce"),
        ("aggregation", "sum", "must be one of token_mean, sequence_mean, dr_grpo"),
        ("correction", "full", "must be one of decoupled, none"),
        ("dtype", "float16", "must be one of float32, bfloat16"),
        ("device", "", "must name a torch device: cpu, cuda"),
        ("learning_rate", 0.0, "must be a finite number above 0"),
        ("eps", float("nan"), "must be a finite number above 0"),
        ("correction_cap", 0.5, "must be at least 1, the weight of what is on policy"),
        ("weight_decay", -0.1, "must be a finite number, at least 0"),
        ("max_grad_norm", float("inf"), "must be a finite number, at least 0"),
        ("clip_high", -0.1, "must be a finite number, at least 0"),
        ("kl_coefficient", -1.0, "must be a finite number, at least 0"),
        ("entropy_coefficient", -1.0, "must be a finite number, at least 0"),
        ("clip_low", 1.5, "must be at most 1"),
        ("constant_tokens", 0, "must be at least 1"),
        ("epochs", 0, "must be at least 1"),
        ("minibatches", 0, "must be at least 1"),
        ("micro_batch_tokens", 0, "must be at least 1"),
        ("threads", 0, "must be at least 1"),
        ("ranks", 0, "must be at least 1"),
        ("timeout_s", 0.0, "must be a finite number above 0"),
        ("warmup_steps", -1, "must be at least 0"),
        ("row_tokens", -1, "must be at least 0"),
        ("seed", -1, "must be at least 0"),
        ("betas", (0.9, 1.0), "must be two numbers in [0, 1)"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_fix(field: str, value: object, fix: str):
    with pytest.raises(ConfigError) as caught:
        TrainingOptions(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"training.{field} = {value!r}: {fix}"


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("rank", -1, "must be at least 0 (0: no adapter)"),
        ("alpha", 0.0, "must be a finite number above 0"),
        ("targets", [], "name at least one linear layer"),
        ("dropout", 1.0, "must be in [0, 1)"),
    ],
)
def test_a_wrong_adapter_is_refused_with_its_field_and_fix(field: str, value: object, fix: str):
    with pytest.raises(ConfigError) as caught:
        LoraOptions(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"training.lora.{field} = {value!r}: {fix}"


def test_options_are_read_from_json_with_their_adapters():
    read = TrainingOptions.read({"ranks": 2, "lora": {"rank": 4, "targets": ["q_proj"]}})
    assert read == TrainingOptions(ranks=2, lora=LoraOptions(rank=4, targets=("q_proj",)))
    assert [read.is_sharded, TrainingOptions().is_sharded] == [True, False]
    with pytest.raises(ConfigError, match=r"training\.lora\.rnk = 4: is not an option"):
        TrainingOptions.read({"lora": {"rnk": 4}})
