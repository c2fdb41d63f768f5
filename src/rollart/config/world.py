"""A config as a simulated world: its pools as they are, nothing left to the planner."""

from dataclasses import replace

from rollart.config.planned import problem_of
from rollart.config.schema import Config
from rollart.errors import ConfigError, UserError
from rollart.planning.plan import ANYWHERE, Plan, Share
from rollart.planning.problem import Pool, Problem
from rollart.planning.worlds import Scale, make_world
from rollart.sim.outages import OutageOptions
from rollart.sim.world import World


def world_from(config: Config) -> World:
    """Return the run a config describes, on the hardware its pools describe.

    What is simulated of it are its first steps: the run itself goes on.
    """
    if not config.pools:
        fix = (
            "name the hardware to simulate: [pools.a] class, count and role "
            '("train" or "rollout") for each kind of GPU'
        )
        raise ConfigError("pools", {}, fix)
    problem = problem_of(config, objective="throughput", any_alpha=False, most_slots=None)
    scale = Scale(attempts=problem.attempts, steps=config.run.steps, skip=0)
    world = make_world(problem, plan_of(config, problem), scale=scale)
    outages = OutageOptions(
        mtbf_s=config.simulation.engine_mtbf_s,
        repair_s=config.simulation.engine_repair_s,
        seed=config.run.seed,
    )
    return replace(world, routing=config.routing, outages=outages, goes_on=True)


def plan_of(config: Config, problem: Problem) -> Plan:
    """Return the division of the hardware that a config itself decides on."""
    for pool in problem.pools:
        if pool.role == "any":
            fix = 'say what it does: "train" or "rollout"; `rollart plan` finds out what is best'
            raise ConfigError(f"pools.{pool.name}.role", pool.role, fix)
    train = next((pool for pool in problem.pools if pool.role == "train"), None)
    if train is None:
        raise UserError('no pool trains: set role = "train" for one of them')
    return Plan(
        train=train,
        train_gpus=train.count,
        rollout=tuple(_share(problem, pool) for pool in problem.pools if pool is not train),
        serves={task.name: ANYWHERE for task in problem.tasks},
        alpha=problem.alpha,
        extra_groups=config.redundancy.extra_groups,
        slots=config.run.environments,
    )


def _share(problem: Problem, pool: Pool) -> Share:
    """Return how a pool is cut into engines: as it says, else as small as the model allows."""
    sizes = problem.tps(pool)
    if not sizes:
        node = pool.node * pool.gpu.memory_gb
        raise UserError(
            f"{problem.model.name} does not fit on pool {pool.name}: an engine needs "
            f"{problem.model.weight_bytes / 1e9:,.0f} GB for weights and room for an episode of "
            f"{problem.longest_tokens} tokens; with tp = {pool.tp or pool.node} it has "
            f"{(pool.tp or pool.node) * pool.gpu.memory_gb:,.0f} GB, a whole node {node:,.0f} GB"
        )
    share = Share(pool=pool, gpus=pool.count, tp=sizes[0], prefill=pool.prefill, decode=pool.decode)
    if not share.engines:
        need = share.tp * max(1, share.prefill + share.decode)
        fix = f"must hold at least one engine, or unit of engines, of {need} GPUs"
        raise ConfigError(f"pools.{pool.name}.count", pool.count, fix)
    return share
