"""The options of the torch engine."""

import pytest

from rollart.errors import ConfigError
from rollart.inference.torch.options import TorchEngineOptions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", ""),
        ("dtype", "float16"),
        ("rows", 0),
        ("max_length", 1),
        ("prefill_tokens", 0),
        ("cached_sessions", -1),
        ("threads", -1),
    ],
)
def test_options_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.torch\.{field} = "):
        TorchEngineOptions(**{field: value})
