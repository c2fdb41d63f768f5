"""Policies that live where they act: in the processes of the environments.

A policy that answers in a fraction of a millisecond is not worth a call to another process for
each action. Every process of environments then holds one (`ResidentPolicies`). At the start of an
attempt it asks an engine for the version being served, with a request of one token, and loads that
version from the weight store unless it holds it already. Engines are thus suspended, updated,
lost and replaced as always, and an attempt is played by one version from its first action to its
last.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from rollart.ports import Array
from rollart.training_ports import PolicyRuntime
from rollart.types import ResidentPolicy, Version

_KEPT = 2
"""Versions kept loaded: attempts that start while engines change versions ask for two."""


class ResidentPolicies:
    """Loads the versions of a policy that the attempts of this process ask for.

    Example:
        >>> policies = ResidentPolicies(runtime, model=model, version=Version(0), fetch=fetch)
        >>> (await policies.at(Version(3))).version
        3

    """

    def __init__(
        self,
        runtime: PolicyRuntime,
        *,
        model: Path,
        version: Version,
        fetch: Callable[[Version], Mapping[str, Array]] | None,
    ) -> None:
        """Take the directory that holds the weights of `version`, and what fetches others.

        Without it every version is that of the directory: nothing is trained.
        """
        self._runtime = runtime
        self._model = model
        self._first = version
        self._fetch = fetch
        self._held: dict[Version, asyncio.Future[ResidentPolicy]] = {}

    async def at(self, version: Version) -> ResidentPolicy:
        """Return the policy of a version; all that ask for it share one."""
        found = self._held.get(version)
        if found is None or (found.done() and found.exception() is not None):
            loading = asyncio.get_running_loop().run_in_executor(None, self._load, version)
            self._held[version] = found = asyncio.ensure_future(loading)
            for old in sorted(self._held)[:-_KEPT]:
                del self._held[old]
        return await asyncio.shield(found)

    def _load(self, version: Version) -> ResidentPolicy:
        fetch = None if version == self._first else self._fetch
        weights = None if fetch is None else fetch(version)
        return ResidentPolicy(version=version, policy=self._runtime.load(self._model, weights))
