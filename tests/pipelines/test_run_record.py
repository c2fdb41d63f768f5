from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train


def test_a_run_with_truncated_sampling_trains_what_it_samples(small, capfd):
    config = small("truncated", "sampling.top_k=3", "sampling.top_p=0.7", "run.steps=1")
    assert train(config) == 0
    assert "log-probs" not in capfd.readouterr().err
    rows = read_rows(config.run.path / "metrics.jsonl")
    (row,) = [row for row in rows if "trainer/loss" in row]
    assert row["trainer/logprob_difference"] < 1e-4
