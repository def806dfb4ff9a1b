"""RMM's allocator for PyTorch, `rmm_torch_allocator`. It is None without PyTorch or without a GPU.

>>> import torch  # doctest: +SKIP
>>> from millpond.compat.rmm.allocators.torch import rmm_torch_allocator
>>> torch.cuda.memory.change_current_allocator(rmm_torch_allocator)  # doctest: +SKIP

The first access makes the allocator. `millpond.torch.use()` sets the same allocator, and also lets PyTorch's
statistics report millpond's memory.
"""

import functools
import importlib
from typing import Any

rmm_torch_allocator: Any


@functools.cache
def _allocator() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return (
        importlib.import_module("millpond.torch").process_allocator() if torch.cuda.is_available() else None
    )


def __getattr__(name: str) -> Any:
    if name == "rmm_torch_allocator":
        return _allocator()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["rmm_torch_allocator"]
