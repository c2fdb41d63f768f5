"""The section `[algorithm]`: which class it is, and what its keys are."""

import sys

import pytest

from rollart.config import dump_toml, explain, load_config
from rollart.config.loader import parse_config
from rollart.errors import ConfigError, UserError
from rollart.plugins import BUILT_IN
from rollart.training.algorithms.dr_grpo import DrGrpo
from rollart.training.algorithms.grpo import Grpo
from rollart.training.algorithms.reinforce import Reinforce
from rollart.training.algorithms.rloo import Rloo
from rollart.training.options import read_algorithm, trainer_arguments

MORE = tuple(BUILT_IN["algorithm"])[4:]
LAKE = '[tasks.lake]\nenv = "frozen_lake"\n'
TOY = '''
from dataclasses import dataclass

from rollart.types import AlgorithmNeeds, TokenLosses


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Rewards, scaled."""

    scale: float = 2.0
    """What rewards are multiplied by."""
    turns: tuple[int, ...] = ()
    needs = AlgorithmNeeds(min_group_size=3)

    def advantages(self, batch):
        return self.scale * batch.rewards[batch.owners]

    def token_weights(self, counts, groups):
        return counts * 0 + 1 / counts.sum()

    def loss(self, terms):
        return TokenLosses(losses=-terms.advantages * terms.logprobs)


@dataclass(frozen=True)
class Half:
    needs = AlgorithmNeeds()


def function():
    """No class."""
'''


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str):
        path = tmp_path / "run.toml"
        path.write_text(LAKE + text)
        return load_config(path, overrides)

    return load


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "toy_algorithm", raising=False)
    path = tmp_path / "toy_algorithm.py"
    path.write_text(TOY)
    return path


def refusal(load, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Grpo()),
        ("[algorithm]\nclip_low = 0.1\n", Grpo(clip_low=0.1)),
        (
            '[algorithm]\ntype = "rloo"\naggregation = "sequence_mean"\n',
            Rloo(aggregation="sequence_mean"),
        ),
        ('[algorithm]\ntype = "dr_grpo"\nconstant_tokens = 9\n', DrGrpo(constant_tokens=9)),
        (
            '[batching]\ngroup_size = 1\nmin_members = 1\n[algorithm]\ntype = "reinforce"\n',
            Reinforce(),
        ),
    ],
)
def test_a_type_and_its_fields_make_an_algorithm_that_is_written_and_read_back(
    load, text, expected
):
    config = load(text)
    assert config.algorithm == expected
    for changed in (False, True):
        assert parse_config(dump_toml(config, changed=changed)) == config
    assert read_algorithm(trainer_arguments(config.training, config.algorithm)["algorithm"]) == (
        expected
    )


def test_the_command_line_changes_type_and_fields(load):
    config = load('[algorithm]\ntype = "rloo"\n', "algorithm.type=dr_grpo", "algorithm.clip_high=1")
    assert config.algorithm == DrGrpo(clip_high=1.0)


@pytest.mark.parametrize("by_path", [True, False], ids=["file.py:Class", "module:Class"])
def test_a_class_of_one_s_own_has_its_own_keys(load, toy, by_path):
    name = f"{toy}:Toy" if by_path else "toy_algorithm:Toy"
    config = load(f'[algorithm]\ntype = "{name}"\nscale = 3.0\nturns = [1, 2]\n')
    assert (type(config.algorithm).__name__, vars(config.algorithm)) == (
        "Toy",
        {"scale": 3.0, "turns": (1, 2)},
    )
    written = dump_toml(config)
    assert f'[algorithm]\ntype = "{name}"\nscale = 3.0\nturns = [1, 2]\n' in written
    assert parse_config(written) == config
    arguments = trainer_arguments(
        config.training, config.algorithm, import_paths=config.run.import_paths
    )
    assert read_algorithm(arguments["algorithm"]) == config.algorithm
    assert "What rewards are multiplied by." in explain("algorithm.scale", config)
    assert "now      3.0" in explain("algorithm.scale", config)
    assert f'now      "{name}"' in explain("algorithm.type", config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[algorithm]\nclip_lo = 0.1\n",
            "algorithm.clip_lo = 0.1: unknown key; did you mean algorithm.clip_low?",
        ),
        (
            "[algorithm]\ntau_positive = 1.0\n",
            'algorithm.tau_positive = 1.0: unknown key; algorithm "grpo" does not read it; '
            "these do: sapo (",
        ),
        (
            '[algorithm]\ntype = "dppo"\ncorrection_cap = 2.0\n',
            'algorithm "dppo" does not read it; these do: grpo, dr_grpo, rloo, reinforce, gspo, ',
        ),
        (
            '[algorithm]\ntype = "gspo"\ncorrection_bound = 0.04\n',
            'algorithm.correction_bound = 0.04: correction = "decoupled" does not read it; '
            "these do: m2po, opsm (",
        ),
        (
            '[algorithm]\ntype = "rlo"\n',
            "algorithm.type = 'rlo': no such algorithm; did you mean rloo? Shipped: grpo, dr_grpo, "
            f"rloo, reinforce, {', '.join(MORE)}; or name your own as module:Class or "
            "path/to/file.py:Class (",
        ),
        ("[algorithm]\ntype = 3\n", "algorithm.type = 3: must be text"),
        ("[algorithm]\nclip_low = 2.0\n", "algorithm.clip_low = 2.0: must lie between 0 and 1"),
        (
            '[algorithm]\naggregation = "sum"\n',
            "algorithm.aggregation = 'sum': must be \"token_mean\"",
        ),
        (
            "[training]\nclip_low = 0.1\n",
            "training.clip_low = 0.1: unknown key; did you mean algorithm.clip_low?",
        ),
        (
            '[training]\nadvantage = "rloo"\n',
            "training.advantage = 'rloo': unknown key; did you mean algorithm.type?",
        ),
        ("[training]\nkl_coefficient = 0.1\n", "did you mean algorithm.kl_coefficient?"),
        ("[algorithm]\nclip_ratio_c = 3.0\n", "did you mean algorithm.dual_clip?"),
        ("[algorithm]\ndelta = 3.0\n", "did you mean algorithm.dual_clip?"),
        ("[training]\noverlong_filter = true\n", "algorithm.mask_truncated_completions?"),
        ("[training]\nlr_scheduler = 'linear'\n", "did you mean training.lr_scheduler_type?"),
        ("[batching]\ngroup_size = 1\n", 'algorithm "grpo" compares attempts: use at least 2'),
    ],
)
def test_a_wrong_algorithm_is_named_with_its_field_and_the_fix(load, text, message):
    assert message in refusal(load, text)


def test_a_key_at_the_top_is_sent_to_its_section(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("clip_low = 0.1\n" + LAKE)
    with pytest.raises(ConfigError, match=r"did you mean algorithm\.clip_low\?"):
        load_config(path)
    path.write_text("algorithm = 3\n" + LAKE)
    with pytest.raises(ConfigError, match=r"algorithm = 3: is a section: write \[algorithm\]"):
        load_config(path)


def test_what_is_no_algorithm_is_refused_by_what_it_lacks(load, toy):
    text = '[algorithm]\ntype = "toy_algorithm:{}"\n'
    assert "Half has no advantages, token_weights, loss" in refusal(load, text.format("Half"))
    assert "must be a frozen dataclass" in refusal(load, text.format("function"))
    assert "toy_algorithm has no Tyo" in refusal(load, text.format("Tyo"))
    assert "did you mean algorithm.scale?" in refusal(load, text.format("Toy") + "scal = 1.0\n")
    assert "use at least 3" in refusal(load, text.format("Toy") + "[batching]\ngroup_size = 2\n")


def test_every_key_of_an_algorithm_is_explained():
    assert explain("algorithm.clip_low") == (
        "algorithm.clip_low\n"
        "  The policy ratio is clipped below at 1 - clip_low.\n"
        "  type     a number\n"
        "  limits   must lie between 0 and 1\n"
        "  default  0.2"
    )
    section = explain("algorithm")
    assert "A = (R - mean) / (std + 1e-6)" in section
    known = "grpo, dr_grpo, rloo, reinforce, " + ", ".join(MORE)
    assert f"type                        One of {known}; or your own as" in section
    assert section.endswith(
        f'  In Python            rollart.train(…, algorithm={{"type": "{MORE[-1]}"}})'
    )
    with pytest.raises(UserError, match='"grpo" does not read it; these do: sapo'):
        explain("algorithm.tau_positive")
    with pytest.raises(UserError, match=r"algorithm\.clip_lo: .*did you mean algorithm\.clip_low"):
        explain("algorithm.clip_lo")
    with pytest.raises(UserError, match=r"training\.clip_low: .*did you mean algorithm\.clip_low"):
        explain("training.clip_low")
