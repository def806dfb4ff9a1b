"""The memory of stacks for Prometheus and OpenTelemetry.

The metrics contain the default resource of each device under the name "default", each registered stack, all
budgets, and the memory of the devices. They keep no stack alive.

A web server can answer a scrape with `render()`. If the program uses the package prometheus_client:

    prometheus_client.REGISTRY.register(millpond.metrics.collector())
    prometheus_client.start_http_server(8000)

If it uses OpenTelemetry:

    millpond.metrics.observe(opentelemetry.metrics.get_meter("millpond"))
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import _arguments, _native
from . import mr as _mr

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

#: The media type of the text of `render`, for the header Content-Type.
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def register(resource: _native.Resource, name: str) -> None:
    """Show a stack in metrics under a name, the label `stack`, for as long as the stack lives.

    If the stack already has a name, this call renames it. If another stack of the device has this name, that
    stack loses it. The figures of a resource that several stacks share appear once, with the names of all
    these stacks: `stack="etl + train"`. So a sum over stacks counts no memory twice.

    Args:
        resource: The stack.
        name: The name. It cannot be empty or "default", nor contain " + ".

    Raises:
        InvalidArgumentError: The name is not allowed, or the stack keeps no figures, like "cuda"; then add
            the layer "statistics".
        ValueError: `name` has a zero.
        TypeError: `resource` is not a resource, or `name` is not a text.

    Example:
        >>> import millpond
        >>> pool = millpond.stack("cuda+pool")
        >>> millpond.metrics.register(pool, "train")
        >>> 'stack="train"' in millpond.metrics.render()
        True
    """
    _mr._checked(resource, "resource")
    _native.register_metrics(resource, _arguments.text(name, "name", "the name of a stack in metrics"))


def render() -> str:
    """Return all metrics as text for Prometheus, in the OpenMetrics format 1.0.

    Send the text with the header Content-Type: `CONTENT_TYPE`.

    Returns:
        The text. Sizes are in bytes.

    Example:
        >>> import millpond
        >>> resource = millpond.mr.get_current_device_resource()
        >>> "hw_gpu_memory_limit_bytes" in millpond.metrics.render()
        True
    """
    return _native.metrics_text()


def _families(name: str | None = None) -> list[dict[str, Any]]:
    """Return one metric, or all metrics, with its values now."""
    families: list[dict[str, Any]] = json.loads(_native.metrics_json(name))
    return families


def _metric(family: dict[str, Any]) -> "Metric":
    """Return a metric as an object of prometheus_client."""
    from prometheus_client import Metric

    name, is_counter = family["prometheus_name"], family["kind"] == "counter"
    unit = "bytes" if family["unit"] == "By" else ""
    metric = Metric(name, family["help"], "counter" if is_counter else "gauge", unit)
    for sample in family["samples"]:
        labels = {label.replace(".", "_"): value for label, value in sample["labels"]}
        metric.add_sample(name + "_total" if is_counter else name, labels, sample["value"])
    return metric


def collector() -> "Collector":
    """Return a collector for a registry of the package prometheus_client.

    Returns:
        A collector that reads the metrics at each scrape.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed.

    Example:
        >>> import millpond
        >>> import prometheus_client  # doctest: +SKIP
        >>> prometheus_client.REGISTRY.register(millpond.metrics.collector())  # doctest: +SKIP
    """
    from prometheus_client.registry import Collector

    class MillpondCollector(Collector):  # type: ignore[misc]
        def describe(self) -> "Iterator[Metric]":
            return (_metric({**family, "samples": []}) for family in _families())

        def collect(self) -> "Iterator[Metric]":
            return (_metric(family) for family in _families() if family["samples"])

    return MillpondCollector()


def observe(meter: "Meter") -> None:
    """Add an observable instrument to an OpenTelemetry meter for each metric.

    Call this once for each meter. The meter asks for the values whenever it exports.

    Args:
        meter: The meter.

    Raises:
        TypeError: `meter` is not a meter.
        ModuleNotFoundError: opentelemetry-api is not installed.

    Example:
        >>> import millpond
        >>> import opentelemetry.metrics  # doctest: +SKIP
        >>> millpond.metrics.observe(opentelemetry.metrics.get_meter("millpond"))  # doctest: +SKIP
    """
    allowed = 'an OpenTelemetry meter, such as opentelemetry.metrics.get_meter("millpond")'
    _arguments.has(meter, "meter", "create_observable_gauge", allowed)
    from opentelemetry.metrics import Observation

    def reading(name: str) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        def observations(options: "CallbackOptions") -> "Iterable[Observation]":
            samples = (sample for family in _families(name) for sample in family["samples"])
            return [Observation(sample["value"], dict(sample["labels"])) for sample in samples]

        return observations

    for family in _families():
        create = getattr(meter, f"create_observable_{family['kind']}")
        create(family["name"], [reading(family["name"])], family["unit"], family["help"])
