import numpy as np
import pytest

from rollart.errors import EnvError, UserError
from rollart_robot.envs import RobotEnv
from rollart_robot.episodes import PlaySettings, play_episodes
from rollart_robot.tasks import evaluation_seeds
from rollart_robot.toy_env import ToyExpert, ToyReach


def expert_chunks(states: np.ndarray, noise: np.ndarray, points: None = None) -> np.ndarray:
    """Act as the expert that goes right, in the newest state; repeat the action."""
    expert = ToyExpert()
    actions = [expert.act(history[-1]) for history in states]
    return np.repeat(np.stack(actions)[:, None], noise.shape[1], axis=1)


def noisy_chunks(states: np.ndarray, noise: np.ndarray, points: None = None) -> np.ndarray:
    return expert_chunks(states, noise) + 0.3 * noise


def test_a_policy_like_the_expert_succeeds_everywhere():
    seeds = evaluation_seeds(0, 30)
    results = play_episodes(expert_chunks, "toy-reach", seeds)
    assert results.successes.all()
    assert results.seeds == seeds
    assert (results.lengths < 40).all()
    # One evaluation serves all: as many as the longest episode needs.
    assert results.evaluations == -(-int(results.lengths.max()) // 3)


def test_what_an_episode_does_does_not_depend_on_its_company():
    seeds = evaluation_seeds(0, 12)
    together, few, alone = (
        play_episodes(noisy_chunks, "toy-reach", seeds, most_together=count) for count in (50, 5, 1)
    )
    assert together.lengths.tolist() == few.lengths.tolist() == alone.lengths.tolist()
    assert together.returns.tolist() == few.returns.tolist() == alone.returns.tolist()
    assert together.evaluations < few.evaluations < alone.evaluations


def test_another_noise_seed_gives_other_episodes():
    seeds = evaluation_seeds(0, 12)
    one, other = (
        play_episodes(noisy_chunks, "toy-reach", seeds, settings=PlaySettings(noise_seed=seed))
        for seed in (0, 1)
    )
    assert one.returns.tolist() != other.returns.tolist()


def test_the_policy_sees_the_latest_states_and_its_first_executed_action_is_the_newest_states():
    seen = list[np.ndarray]()

    def count_up(states: np.ndarray, noise: np.ndarray, points: None = None) -> np.ndarray:
        seen.append(states[0])
        chunk = np.zeros_like(noise)
        chunk[:, :, 0] = np.arange(noise.shape[1]) / 10
        return chunk

    settings = PlaySettings(horizon=5, execute=2, observation_steps=3)
    play_episodes(count_up, "toy-reach", [7], settings=settings)
    first, second, third = seen[:3]
    assert first[0].tolist() == first[1].tolist() == first[2].tolist()
    assert second[0].tolist() == first[2].tolist()
    assert np.allclose(np.diff(second[:, 0]), [0.08 * 0.2, 0.08 * 0.3])
    assert third[0].tolist() == second[2].tolist()


def test_an_episode_may_continue_after_its_success():
    settings = PlaySettings(stop_at_success=False)
    results = play_episodes(expert_chunks, "toy-reach", [7], settings=settings)
    assert results.successes.tolist() == [True]
    assert results.lengths.tolist() == [60]


def test_every_state_can_be_watched():
    steps, ends = list[int](), list[int]()

    def watch(index: int, env: RobotEnv, is_last: bool) -> None:
        steps.append(index)
        ends.extend([index] if is_last else [])

    results = play_episodes(expert_chunks, "toy-reach", [7, 8], watch=watch)
    assert [steps.count(index) for index in (0, 1)] == (results.lengths + 1).tolist()
    assert sorted(ends) == [0, 1]


def test_chunks_of_a_wrong_shape_are_refused():
    with pytest.raises(EnvError, match=r"returned \(1, 4, 1\): must be \(1, 4, 2\)"):
        play_episodes(lambda states, noise: noise[:, :, :1], "toy-reach", [7])


def test_more_actions_than_a_chunk_has_are_refused():
    with pytest.raises(
        UserError, match="execute = 4: with 2 observation steps must be from 1 to 3"
    ):
        PlaySettings(execute=4)
    with pytest.raises(UserError, match="seeds"):
        play_episodes(expert_chunks, "toy-reach", [])


def test_a_policy_that_sees_points_gets_them_with_the_robots_own_state(monkeypatch):
    class WithPoints(ToyReach):
        def points(self, count: int = 512) -> np.ndarray:
            return np.repeat([[*self._position, 0.0]], count, axis=0).astype(np.float32)

    def act(states: np.ndarray, noise: np.ndarray, points: np.ndarray | None = None) -> np.ndarray:
        assert points is not None
        assert states.shape == (2, 2, 2)
        assert points.shape == (2, 2, 8, 3)
        assert points[:, :, 0, :2].tolist() == states.tolist()
        return noise

    monkeypatch.setattr("rollart_robot.episodes.make_env", lambda task: WithPoints())
    play_episodes(act, "toy-reach", [7, 8], settings=PlaySettings(points=8))
