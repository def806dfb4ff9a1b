"""Configures every worker of a Dask cluster, also those that join later, and reports their memory.

>>> import millpond.dask
>>> millpond.dask.setup(client, "cuda+pool", frameworks=["cupy"])

or at a worker's start, before anything else sets a resource: `dask worker --preload millpond.dask
--millpond-stack cuda+pool --millpond-frameworks cupy,numba`. A worker uses the default device of its process:
the one that it sees, which Dask-CUDA chooses, or what MILLPOND_DEVICE names.
"""

import importlib

from . import _library, _locks
from . import mr as _mr
from ._errors import UnsupportedError

_distributed = _library.framework("distributed", "'dask[distributed]'")
_click = _library.framework("click", "'dask[distributed]'")
_FRAMEWORKS = ("numba", "cupy", "torch", "rmm", "cuda_core")
_lock = _locks.lock()
_prepared = {}


def memory_metric(worker=None):
    """Return the memory of the worker's device in bytes: what `worker.metrics["millpond"]` reports."""
    with _lock:
        ordinal = next(iter(_prepared.values()), 0)
    resource = _mr.get_per_device_resource(_library.device_of(ordinal))
    free, total = resource.memory_info()
    try:
        counted = resource.counts()
    except UnsupportedError:  # plain memory keeps no counts
        counted = {}
    names = ("bytes_in_use", "peak_bytes_in_use", "bytes_reserved", "allocations")
    return {"stack": resource.text, "free": free, "total": total} | {n: counted.get(n, 0) for n in names}


def configure(worker, stack=None, frameworks=()):
    """Configure this worker's process. A second call changes nothing."""
    unknown = set(frameworks) - set(_FRAMEWORKS)
    if unknown:
        raise ValueError(f"{sorted(unknown)} is not served; known are {', '.join(_FRAMEWORKS)}")
    if "millpond" in worker.metrics:
        return
    with _lock:
        if stack not in _prepared:  # workers of one process share one stack
            ordinal = next(iter(_prepared.values()), None)
            ordinal = _library.ordinal_of(None) if ordinal is None else ordinal
            _library.prepare(stack, ordinal)
            _prepared[stack] = ordinal
        for name in frameworks:
            importlib.import_module(f"millpond.{name}").use()
    worker.metrics["millpond"] = memory_metric


class MillpondPlugin(_distributed.WorkerPlugin):
    """A worker plug-in that configures its worker; its end frees nothing, as buffers may live."""

    name = "millpond"
    idempotent = True

    def __init__(self, stack=None, frameworks=()):
        self.stack, self.frameworks = stack, tuple(frameworks)

    def setup(self, worker):
        configure(worker, self.stack, self.frameworks)

    def teardown(self, worker):
        worker.metrics.pop("millpond", None)


def setup(client, stack=None, frameworks=()):
    """Configure all workers of a client's cluster, and each that joins later. `stack` is a text."""
    return client.register_plugin(MillpondPlugin(stack, frameworks))


@_click.command()
@_click.option("--millpond-stack", default=None, help="The stack, as cuda+pool")
@_click.option("--millpond-frameworks", default="", help="What takes memory from it, as cupy,numba")
def dask_setup(worker, millpond_stack, millpond_frameworks):
    """Configure a worker that starts with `--preload millpond.dask`."""
    configure(worker, millpond_stack, [name for name in millpond_frameworks.split(",") if name])
