"""Language models as the policy of a run: the kind called "language".

Everything that knows of tokenizers, prompts and Hugging Face directories on the way from a config
to a run is behind this runtime. An environment worker makes one as well, so what needs torch is
imported when it is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rollart.config import Config
from rollart.errors import ConfigError, InvariantError
from rollart.inference.renderer import ChatRenderer
from rollart.models.files import check_files, local_model
from rollart.models.tokenizer import load_tokenizer
from rollart.plugins import TRAINER
from rollart.ports import Array
from rollart.training_ports import Learner
from rollart.types import Json, Trajectory

Say = Callable[[str], None]


class LanguageRuntime:
    """What a run asks of a language model.

    Example:
        >>> LanguageRuntime(config).prepare(print)
        PosixPath('.cache/rollart/warm-0.3M-1f0c…')

    """

    trainer: ClassVar[str] = TRAINER

    def __init__(self, config: Config) -> None:
        self._config = config

    def check_files(self) -> None:
        """Refuse a directory that lacks files of a checkpoint."""
        path = self._config.model.path
        if (model := local_model(path)) is not None:
            check_files(model, named=path)

    def prepare(self, say: Say) -> Path:
        """Return the directory of the checkpoint training starts from; a tiny one is built."""
        from rollart.pipelines.start_model import prepare_model  # noqa: PLC0415 loads torch

        return prepare_model(self._config, say)

    def find(self, checkpoint: Path, notes: Mapping[str, Json], say: Say) -> Path:
        """Return the directory of the model that a resumed run started from."""
        from rollart.pipelines.start_model import find_model  # noqa: PLC0415 loads torch

        return find_model(self._config, checkpoint, notes, say)

    def check(self, model: Path) -> None:
        """Refuse a model that the engine or the trainer would refuse later."""
        from rollart.pipelines.start_model import check_model  # noqa: PLC0415 loads torch

        check_model(model, named=self._config.model.path)

    def trainer_options(self) -> dict[str, Json]:
        """Return none."""
        return {}

    def renderer(self, model: Path) -> ChatRenderer:
        """Return what writes messages with the model's tokenizer and chat template."""
        return ChatRenderer(load_tokenizer(model))

    def encode(self, groups: Sequence[Sequence[Trajectory]]) -> Mapping[str, Array]:
        """Return trajectories as arrays over all their tokens."""
        from rollart.training.batch import encode  # noqa: PLC0415 loads numpy

        drawn = self._config.sampling
        return encode(
            groups,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            top_k=drawn.top_k,
            min_p=drawn.min_p,
        )

    def load(self, model: Path, weights: Mapping[str, Array] | None) -> Any:
        """Refuse: engines sample for a language model."""
        del model, weights
        raise InvariantError("a language model acts through engines, not inside an environment")

    def learner(self) -> Learner:
        """Refuse: a tiny model learns from demonstrations by its warm start."""
        fix = "language models learn from rewards: use agentic (a tiny one has model.warm_start)"
        raise ConfigError("run.pipeline", self._config.run.pipeline, fix)
