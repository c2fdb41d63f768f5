"""Devices: a torch device by its name, if this machine has it."""

import torch

from rollart.errors import ConfigError


def find_device(name: str, *, field: str) -> torch.device:
    """Return a device of this machine; an error names the field of the config."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0]
        fix = f"this machine has no such torch device: {reason}; cpu always works"
        raise ConfigError(field, name, fix) from error
    return device
