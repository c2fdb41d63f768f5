import pytest

from rollart.config import load_config
from rollart.config.checks import describe_truncation


@pytest.mark.parametrize(
    ("overrides", "begins", "ends"),
    [
        ([], "", ""),
        (["sampling.temperature=0.5"], "", ""),
        (["sampling.min_p=0.1"], "sampling.min_p = 0.1: the trainer's log-probs are of all", "it "),
        (
            ["sampling.top_p=0.9", "sampling.top_k=5"],
            "sampling.top_p = 0.9, sampling.top_k = 5: the trainer's log-probs are of all",
            "them ",
        ),
    ],
)
def test_what_truncates_the_sampling_is_named(tmp_path, overrides, begins, ends):
    file = tmp_path / "run.toml"
    file.write_text('[tasks.lake]\nenv = "frozen_lake"\n')
    said = describe_truncation(load_config(file, overrides))
    assert said.startswith(begins)
    assert said.endswith(f"leave {ends}out to train what is sampled" if ends else "")
    assert bool(said) == bool(begins)
