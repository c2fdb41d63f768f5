"""From a config to a planning problem, and from a plan back to a config.

`world_from` simulates a config as it stands; `problem_of` and `apply` serve `rollart plan`. The
config that `apply` returns describes the plan completely, so simulating it simulates the plan.
"""

from dataclasses import replace
from typing import Literal

from rollart.config.pools import PoolOptions
from rollart.config.schema import Config
from rollart.errors import ConfigError, UserError
from rollart.planning.plan import ANYWHERE, Plan, PoolShare
from rollart.planning.problem import Objective, Pool, Problem
from rollart.planning.trials import Scale, make_world
from rollart.sim.from_config import profiles_of, shape_of
from rollart.sim.world import OutageOptions, World


def world_from(config: Config) -> World:
    """Return the run a config describes, on the hardware of its pools.

    Its first steps are simulated, as the start of a longer run.
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
    return replace(world, routing=config.routing, outages=outages, open_ended=True)


def plan_of(config: Config, problem: Problem) -> Plan:
    """Return the plan that a config's own pools describe."""
    for pool in problem.pools:
        if pool.role == "any":
            fix = 'set "train" or "rollout"; `rollart plan` finds the best division'
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


def _share(problem: Problem, pool: Pool) -> PoolShare:
    """Return a pool divided into engines: of its own `tp`, or else as small as the model allows."""
    sizes = problem.tps(pool)
    if not sizes:
        node = pool.node * pool.gpu.memory_gb
        raise UserError(
            f"{problem.model.name} does not fit on pool {pool.name}: an engine needs "
            f"{problem.model.weight_bytes / 1e9:,.0f} GB for weights and room for an episode of "
            f"{problem.longest_tokens} tokens; with tp = {pool.tp or pool.node} it has "
            f"{(pool.tp or pool.node) * pool.gpu.memory_gb:,.0f} GB, a whole node {node:,.0f} GB"
        )
    share = PoolShare(
        pool=pool, gpus=pool.count, tp=sizes[0], prefill=pool.prefill, decode=pool.decode
    )
    if not share.engines:
        need = share.tp * max(1, share.prefill + share.decode)
        fix = f"must hold at least one engine, or unit of engines, of {need} GPUs"
        raise ConfigError(f"pools.{pool.name}.count", pool.count, fix)
    return share


_EXTRA = (0.0, 0.0625, 0.125, 0.25)
"""Numbers of redundant groups to choose from, as shares of a batch."""


def problem_of(
    config: Config,
    *,
    objective: Objective,
    any_alpha: bool,
    most_slots: int | None,
    may_split: bool = True,
) -> Problem:
    """Return a config as a problem for the planner.

    With `any_alpha` the planner may lower the config's staleness bound; otherwise it is kept.
    """
    if most_slots is not None and most_slots < 1:
        raise UserError(f"--environments {most_slots}: must be at least 1")
    rules = config.rules
    alpha = config.mode.staleness(config.staleness).alpha
    alphas = tuple(range(1, alpha + 1)) if any_alpha and config.mode.alpha is None else ()
    groups = config.batching.groups_per_step
    is_window = config.mode.admission == "window"
    extra = {round(part * groups) for part in _EXTRA} if is_window else set[int]()
    return Problem(
        model=shape_of(config),
        pools=tuple(
            _pool(name, pool, pool.role)
            for name, pool in config.pools.items()
            if pool.role != "environments"
        ),
        tasks=profiles_of(config),
        rules=rules,
        routing=config.routing,
        objective=objective,
        alphas=alphas,
        extra_groups=tuple(sorted(extra)),
        may_split=may_split,
        most_slots=most_slots or 0,
        reuse_prefixes=config.routing.sticky,
        blocking_weights=config.mode.update == "idle",
        constants=config.simulation.constants,
        rewards=config.simulation.rewards,
    )


def _pool(name: str, options: PoolOptions, role: Literal["any", "train", "rollout"]) -> Pool:
    return Pool(
        name=name,
        gpu=replace(options.gpu, memory_gb=options.memory_gb_each),
        count=options.count,
        role=role,
        tp=options.tp,
        prefill=options.prefill,
        decode=options.decode,
        price=options.price,
        link=options.link,
    )


def apply(config: Config, plan: Plan) -> Config:
    """Return the config changed to follow a plan."""
    pools: dict[str, PoolOptions] = {}
    for share in plan.rollout:
        name = share.pool.name
        pools[name] = replace(
            config.pools[name],
            count=share.gpus,
            role="rollout",
            tp=share.tp,
            prefill=share.prefill,
            decode=share.decode,
        )
    name = plan.train.name
    place = name if name not in pools else _free_name(f"{name}-train", config)
    training = replace(
        config.pools[name], count=plan.train_gpus, role="train", tp=0, prefill=0, decode=0
    )
    hosts = {name: pool for name, pool in config.pools.items() if pool.role == "environments"}
    return replace(
        config,
        run=replace(config.run, environments=plan.slots),
        staleness=replace(config.staleness, alpha=plan.alpha),
        redundancy=replace(config.redundancy, extra_groups=plan.extra_groups),
        affinity=replace(
            config.affinity.within(hosts), tasks=plan.affinity if config.mode.affinity else {}
        ),
        pools={place: training, **pools, **hosts},
        training=replace(config.training, ranks=plan.train_gpus),
    )


def _free_name(name: str, config: Config) -> str:
    while name in config.pools:
        name += "-"
    return name
