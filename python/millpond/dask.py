"""Configures every worker of a Dask cluster, and reports the workers' memory.

>>> import millpond.dask
>>> millpond.dask.setup(client, "cuda+pool", frameworks=["cupy"])  # doctest: +SKIP

`setup` also configures workers that join later. To configure a worker before any other code sets a resource,
start it with `dask worker --preload millpond.dask --millpond-stack cuda+pool --millpond-frameworks
cupy,numba`. A worker uses the default device of its process. Dask-CUDA selects this device, or
MILLPOND_DEVICE names it.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from . import _arguments, _library, _locks
from . import mr as _mr
from ._errors import UnsupportedError

_distributed: Any = _library.framework("distributed", "'dask[distributed]'")
_click: Any = _library.framework("click", "'dask[distributed]'")
_FRAMEWORKS = ("numba", "cupy", "torch", "rmm", "cuda_core")
_lock = _locks.lock()
_prepared: dict[str | None, int] = {}


def memory_metric(worker: Any = None) -> dict[str, Any]:
    """Return the memory of the worker's device, as `worker.metrics["millpond"]` reports it.

    Args:
        worker: The worker. Dask passes it, and the function does not use it.

    Returns:
        A dict. `stack` is the stack's text. `free`, `total`, `bytes_in_use`, `peak_bytes_in_use` and
        `bytes_reserved` are in bytes. `allocations` is the number of allocations.

    Example:
        >>> import millpond.dask
        >>> millpond.dask.memory_metric()["stack"]
        'cuda'
    """
    with _lock:
        ordinal = next(iter(_prepared.values()), 0)
    resource = _mr.get_per_device_resource(_library.device_of(ordinal))
    free, total = resource.memory_info()
    try:
        counted = resource.counts()
    except UnsupportedError:  # plain memory has no counters
        counted = {}
    names = ("bytes_in_use", "peak_bytes_in_use", "bytes_reserved", "allocations")
    return {"stack": resource.text, "free": free, "total": total} | {n: counted.get(n, 0) for n in names}


def _supported(frameworks: Iterable[str]) -> tuple[str, ...]:
    """Return the names in `frameworks`. Refuse other libraries."""
    allowed = f"a list of names out of {', '.join(_FRAMEWORKS)}"
    if not isinstance(frameworks, Iterable) or isinstance(frameworks, (str, bytes)):
        raise _arguments.wrong(TypeError, "frameworks", allowed, frameworks)
    names = tuple(frameworks)
    if any(name not in _FRAMEWORKS for name in names):
        raise _arguments.wrong(ValueError, "frameworks", allowed, frameworks)
    return names


def configure(worker: Any, stack: str | None = None, frameworks: Iterable[str] = ()) -> None:
    """Configure this worker's process. A second call changes nothing.

    Args:
        worker: The `distributed.Worker`.
        stack: The text of the stack, such as "cuda+pool". With None, the device keeps its default, but
            `cuda+pool` replaces plain CUDA memory.
        frameworks: The names of the libraries that take memory from the stack. Known names are "numba",
            "cupy", "torch", "rmm" and "cuda_core".

    Raises:
        ValueError: `frameworks` names a library that millpond does not support.
        TypeError: An argument has the wrong type, such as a text for `frameworks`.
        ImportError: A library is not installed.
        StackError: `stack` is malformed.

    Example:
        >>> import millpond.dask
        >>> class Worker:
        ...     metrics = {}
        >>> millpond.dask.configure(Worker(), "cuda+pool")
        >>> "millpond" in Worker.metrics
        True
    """
    frameworks = _supported(frameworks)
    _library.check_stack(stack)
    _arguments.has(worker, "worker", "metrics", "a distributed.Worker")
    if "millpond" in worker.metrics:
        return
    with _lock:
        if stack not in _prepared:  # the workers of one process share one stack
            ordinal = next(iter(_prepared.values()), None)
            ordinal = _library.ordinal_of(None) if ordinal is None else ordinal
            _library.prepare(stack, ordinal)
            _prepared[stack] = ordinal
        for name in frameworks:
            importlib.import_module(f"millpond.{name}").use()
    worker.metrics["millpond"] = memory_metric


class MillpondPlugin(_distributed.WorkerPlugin):  # type: ignore[misc]
    """A plug-in that configures its worker. If it is removed, the worker keeps its stack.

    The stack stays, because buffers may still use its memory.

    Args:
        stack: The text of the stack, as for `configure`.
        frameworks: The names of the libraries that take memory from the stack, as for `configure`.

    Raises:
        ValueError: `frameworks` names a library that millpond does not support.
        TypeError: `frameworks` is not a list of names.

    Example:
        >>> import millpond.dask
        >>> plugin = millpond.dask.MillpondPlugin("cuda+pool", ["cupy"])
        >>> client.register_plugin(plugin)  # doctest: +SKIP
    """

    name = "millpond"
    idempotent = True

    def __init__(self, stack: str | None = None, frameworks: Iterable[str] = ()) -> None:
        _library.check_stack(stack)
        self.stack, self.frameworks = stack, _supported(frameworks)

    def setup(self, worker: Any) -> None:
        """Configure a worker. Dask calls this when the worker starts.

        Args:
            worker: The `distributed.Worker`.

        Raises:
            ValueError: `frameworks` names a library that millpond does not support.

        Example:
            >>> import millpond.dask
            >>> class Worker:
            ...     metrics = {}
            >>> millpond.dask.MillpondPlugin("cuda+pool").setup(Worker())
        """
        configure(worker, self.stack, self.frameworks)

    def teardown(self, worker: Any) -> None:
        """Stop reporting a worker's memory. Dask calls this when the worker ends.

        Args:
            worker: The `distributed.Worker`.

        Example:
            >>> import millpond.dask
            >>> class Worker:
            ...     metrics = {}
            >>> millpond.dask.MillpondPlugin().teardown(Worker())
        """
        _arguments.has(worker, "worker", "metrics", "a distributed.Worker")
        worker.metrics.pop("millpond", None)


def setup(client: Any, stack: str | None = None, frameworks: Iterable[str] = ()) -> Any:
    """Configure all workers of a cluster, and each worker that joins later.

    Args:
        client: The `distributed.Client` of the cluster.
        stack: The text of the stack, as for `configure`.
        frameworks: The names of the libraries that take memory from the stack, as for `configure`.

    Returns:
        The result of `client.register_plugin`: the answer of each worker.

    Raises:
        ValueError: `frameworks` names a library that millpond does not support.

    Example:
        >>> import millpond.dask
        >>> from distributed import Client
        >>> client = Client(processes=False)  # doctest: +SKIP
        >>> millpond.dask.setup(client, "cuda+pool", frameworks=["cupy"])  # doctest: +SKIP
    """
    _arguments.has(client, "client", "register_plugin", "a distributed.Client")
    return client.register_plugin(MillpondPlugin(stack, frameworks))


@_click.command()  # type: ignore[untyped-decorator]
@_click.option(  # type: ignore[untyped-decorator]
    "--millpond-stack", default=None, help="The stack as text, such as cuda+pool"
)
@_click.option(  # type: ignore[untyped-decorator]
    "--millpond-frameworks", default="", help="The libraries that use the stack, such as cupy,numba"
)
def dask_setup(worker: Any, millpond_stack: str | None, millpond_frameworks: str) -> None:
    """Configure a worker that starts with `--preload millpond.dask`."""
    configure(worker, millpond_stack, [name for name in millpond_frameworks.split(",") if name])
