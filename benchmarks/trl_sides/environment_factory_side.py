"""TRL's `GRPOTrainer(environment_factory=…)` playing the game: its method `guess` is the tool.

TRL generates for all trajectories together and then runs their tool calls one after another, so a
call's latency is paid once per call. After the game ended a call answers at once: no latency is
charged that the game would not have had.
"""

import time
from functools import partial

from benchmarks.trl_sides import game, side


class Guessing:
    """One game as TRL drives it."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._env = game.make_env()
        self._is_over = False
        self._earned = 0.0
        self._calls = 0

    def reset(self, seed: int, **_: object) -> str:
        """Start a game; return what the player sees first."""
        observation, _info = self._env.reset(seed, {})
        self._is_over, self._earned, self._calls = False, 0.0, 0
        return observation

    def guess(self, number: int) -> str:
        """Guess the hidden number.

        Args:
            number: The guess.

        """
        if self._is_over:
            return "over"
        time.sleep(self._latency_s)
        observation, reward, terminated, truncated, _info = self._env.step(str(number))
        self._calls += 1
        self._earned += reward
        self._is_over = terminated or truncated or self._calls == game.MAX_TURNS
        return observation

    def get_reward(self) -> float:
        """Return what the game earned."""
        return self._earned


def note_rollout(record: side.Record, trainer: side.GRPOTrainer) -> None:
    """Wrap the trainer's generation so that each step's games and tokens are recorded."""
    generate = trainer._generate

    def generate_and_note(prompts: list[object]) -> tuple[object, ...]:
        output = generate(prompts)
        prompt_ids, completion_ids, mask = output[0], output[1], output[2]
        games = trainer.environments
        record.rollout(
            trajectories=len(games),
            calls=sum(one._calls for one in games),
            prompt_tokens=sum(map(len, prompt_ids)),
            sampled_tokens=sum(map(sum, mask)),
            completion_tokens=sum(map(len, completion_ids)),
        )
        return output

    trainer._generate = generate_and_note


def main() -> None:
    """Train and print one JSON line."""
    arguments = side.parse_arguments(__doc__, rollouts=("tools",))
    messages = [{"role": "system", "content": game.SYSTEM}, {"role": "user", "content": ""}]
    rows = [{"prompt": messages, "seed": seed} for seed in range(game.TASKS)]
    options = {
        "max_tool_calling_iterations": game.MAX_TURNS,
        "max_completion_length": 64,
        "generation_kwargs": {"max_new_tokens": game.MAX_TOKENS + 1},
    }
    side.train(
        arguments,
        side.Record(),
        rows=rows,
        options=options,
        reward_funcs=[],
        environment_factory=partial(Guessing, arguments.latency_s),
        prepare=note_rollout,
    )


if __name__ == "__main__":
    main()
