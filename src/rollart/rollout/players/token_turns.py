"""The turn loop of a language model: observe, complete, act, until the episode ends.

`Episode` is the loop without I/O: `start` gives the first request, `complete` takes what was
sampled and gives the action's text, `observe` takes the environment's answer and gives the next
request, or None at the end. Token ids only grow: what was sampled is kept as sampled, observations
are rendered once. `TurnPlayer` connects it with an environment and engines.
"""

from dataclasses import replace

from rollart.control.episode import Turns
from rollart.errors import EnvError
from rollart.ports import AttemptContext, Renderer
from rollart.seeds import derive_seed
from rollart.types import (
    AttemptSpec,
    Completion,
    Message,
    Played,
    Request,
    StepOutcome,
    StopReason,
    TokenTurns,
    Turn,
    open_chat,
)


class TurnPlayer:
    """Plays an attempt turn by turn; the player called "turns".

    Example:
        [tasks.lake]
        env = "frozen_lake"
        player = "turns"

    """

    async def play(self, attempt: AttemptContext) -> Played:
        """Play the attempt to its end."""
        observation, _ = await attempt.reset()
        if not isinstance(observation, str):
            raise EnvError("its observations are arrays: choose a player that reads them")
        episode = Episode(attempt.spec, renderer=attempt.renderer)
        request: Request | None = episode.start(observation)
        while request is not None:
            text = episode.complete(await attempt.complete(request))
            action = await attempt.parse(text)
            request = episode.observe(await attempt.step(action))
        return episode.finish()


class Episode:
    """One attempt at a task, as it grows."""

    def __init__(self, spec: AttemptSpec, *, renderer: Renderer) -> None:
        self.spec = spec
        self._renderer = renderer
        self._tokens: list[int] = []
        self._progress = Turns(spec.limits)
        self._prompt: tuple[int, ...] = ()
        self._observation = ""
        self._completion: Completion | None = None
        self._action = ""
        self._turns: list[Turn] = []
        self._reward = 0.0
        self._stop: StopReason | None = None
        self._success = False

    def start(self, observation: str) -> Request:
        """Open the episode and return its first request."""
        prompt = self._renderer.start(open_chat(self.spec.system, observation))
        if self._show(observation, prompt):
            limit, length = self.spec.limits.max_tokens, len(self._tokens)
            raise EnvError(
                f"the first observation makes a prompt of {length} tokens, which leaves no room "
                f"within max_tokens = {limit}: raise tasks.{self.spec.task.env}.max_tokens or "
                "shorten the observation"
            )
        return self._request()

    def complete(self, completion: Completion) -> str:
        """Take what was sampled and return the text of the action."""
        self._completion = completion
        self._tokens += completion.tokens
        self._progress.sample(len(completion.tokens))
        self._action = self._renderer.decode(completion.tokens)
        return self._action

    def observe(self, outcome: StepOutcome) -> Request | None:
        """Take the environment's answer; return the next request, or None at the end."""
        completion = self._completion
        assert completion is not None
        self._turns.append(
            Turn(
                prompt_tokens=self._prompt,
                tokens=completion.tokens,
                logprobs=completion.logprobs,
                versions=completion.versions,
                observation=self._observation,
                action=self._action,
                reward=outcome.reward,
                is_cut=completion.finish == "length",
            )
        )
        self._completion = None
        self._reward += outcome.reward
        self._stop = self._progress.take(terminated=outcome.terminated, truncated=outcome.truncated)
        if self._stop is None:
            closed = completion.tokens[-1] in self._renderer.stop
            answer = (Message.of("user", outcome.observation),)
            self._stop = self._show(
                outcome.observation, self._renderer.extend(answer, closed=closed)
            )
            if self._stop is None:
                return self._request()
        claimed = outcome.success
        self._success = outcome.terminated and self._reward > 0 if claimed is None else claimed
        return None

    def finish(self) -> Played:
        """Return the frozen record of an episode that has ended."""
        assert self._stop is not None
        return Played(
            payload=TokenTurns(turns=tuple(self._turns)),
            stop=self._stop,
            success=self._success,
            reward=self._reward,
        )

    def _show(self, observation: str, tokens: tuple[int, ...]) -> StopReason | None:
        self._observation = observation
        self._prompt = tokens
        self._tokens += tokens
        return self._progress.show(len(tokens))

    def _request(self) -> Request:
        spec, turn = self.spec, len(self._turns)
        room = self._progress.room
        return Request(
            session=spec.id,
            turn=turn,
            domain=spec.task.domain,
            tokens=tuple(self._tokens),
            sampling=replace(spec.sampling, max_tokens=min(spec.sampling.max_tokens, room)),
            stop=self._renderer.stop,
            seed=derive_seed(spec.seed, turn),
        )
