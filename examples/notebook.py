"""Define an environment, train, evaluate, simulate and read the run: in a script or a notebook."""
# ruff: noqa: D102, T201

from random import Random

import rollart


class Echo:
    """The agent must repeat the letter that it sees."""

    def reset(self, seed, task):
        self.letter = Random(seed).choice("abcdefgh")
        return f"say {self.letter}", {"actions": list("abcdefgh")}

    def step(self, action):
        is_right = action == self.letter
        return "right" if is_right else "wrong", float(is_right), True, False, {}

    def suggest(self):  # optional: a good action, for the warm start of a tiny model
        return self.letter


def main(**changes):
    """Run the notebook; `changes` are sections of the config or keys of [run]."""
    small = {"steps": 20, "model": {"path": "tiny:0.3M"}, "sampling": {"max_tokens": 2}}
    run = rollart.train(env=Echo, **{**small, **changes})
    print("success:", run.summary["success_before"], "->", run.summary["success_after"])
    print(
        "reward of each step:", [row["reward_mean"] for row in run.metrics if "reward_mean" in row]
    )
    print(run.samples[0])
    print("greedy:", rollart.evaluate(run, episodes=50, temperature=0.0)["success_rate"])
    print("lost:", rollart.read_run(run.directory).replay()["lost"])
    pools = {"h800": {"class": "H800", "count": 4, "role": "train"}}
    pools["h20"] = {"class": "H20", "count": 8, "role": "rollout"}
    model, tasks = {"path": "Qwen/Qwen3-8B"}, {"echo": {"profile": {"like": "game"}}}
    there = rollart.simulate(run.config, steps=3, pools=pools, model=model, tasks=tasks)
    print("seconds a step on 12 GPUs:", there.summary["step_s"])
    return run


if __name__ == "__main__":
    main()
