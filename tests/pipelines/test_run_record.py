from rollart.pipelines.agentic import train


def test_a_run_with_truncated_sampling_warns_of_it_once(small, capfd):
    assert train(small("truncated", "sampling.top_k=3", "run.steps=1")) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("warning: sampling.top_k = 3: the trainer's log-probs are of all tokens") == 1
