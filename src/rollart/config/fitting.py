"""Fitting: what a config asks of its pools that cannot be had, known from the config alone."""

from rollart.config.local_pools import local_engines
from rollart.config.placing import capacities, engine_places, trainer_place
from rollart.config.schema import Config
from rollart.control.binding import Bindings
from rollart.errors import ConfigError, PlacementError


def check_places(config: Config) -> None:
    """Raise a ConfigError if no machine could give the workers their places.

    With an address the pools are a cluster's: all of them free, they must have room for every rank
    and engine. Without one they are this machine's.
    """
    if not config.ray.address:
        local_engines(config)
        return
    engines = engine_places(config)
    pools = capacities(config)
    bindings = Bindings(pools)
    # Of nodes of any size: what does not fit on one that has the whole pool fits on none.
    bindings.observe({pool.name: {pool.name: pool.units} for pool in pools}, now=0.0)
    place = trainer_place(config)
    try:
        for rank in range(config.training.ranks):
            bindings.bind(f"rank-{rank}", preferred=place.preferred, needs=place.needs, now=0.0)
    except PlacementError as error:
        raise _no_room_to_train(config, bindings) from error
    try:
        for name, place in engines.items():
            bindings.bind(name, preferred=place.preferred, needs=place.needs, now=0.0)
    except PlacementError as error:
        fix = f"so many leave too little for engines: {error}. Lower it, or give the pools more"
        raise ConfigError("training.ranks", config.training.ranks, fix) from error


def _no_room_to_train(config: Config, bindings: Bindings) -> ConfigError:
    full = [row for row in bindings.table() if row.used]
    if not full:
        fix = 'none of them may train: add one with role = "train", or leave a role out'
        return ConfigError("pools", list(config.pools), fix)
    units = ", ".join(f"pools.{row.name} has {row.units}" for row in full)
    fix = f"each takes a unit of a pool that may train, and {units}: lower it, or raise the count"
    return ConfigError("training.ranks", config.training.ranks, fix)
