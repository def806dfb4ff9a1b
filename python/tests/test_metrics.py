"""The metrics of stacks, with the packages of Prometheus and OpenTelemetry."""

import subprocess
import sys
import threading

import pytest

import millpond
from millpond import metrics, mr

prometheus_client = pytest.importorskip("prometheus_client")


def read(text):
    """Return the values of an OpenMetrics text by name and labels. The parser refuses a wrong text."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    assert len(values) == len(samples)
    return values


def value(values, name, **labels):
    found = [v for (known, *of), v in values.items() if known == name and labels.items() <= dict(of).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_the_parser_reads_what_the_resource_counts():
    stack = millpond.stack("cuda+pool:max=1GiB+limiting:limit=64MiB+statistics")
    metrics.register(stack, "train")
    block = stack.allocate(1000)
    with pytest.raises(millpond.OutOfMemoryError):
        stack.allocate(1 << 40)
    values, counts = read(metrics.render()), stack.counts()
    for name, count in [
        ("millpond_memory_live_bytes", "bytes_in_use"),
        ("millpond_memory_requested_bytes", "bytes_requested"),
        ("millpond_memory_reserved_bytes", "bytes_reserved"),
        ("millpond_memory_peak_bytes", "peak_bytes_in_use"),
        ("millpond_allocations_total", "allocations"),
        ("millpond_frees_total", "deallocations"),
    ]:
        assert value(values, name, stack="train") == counts[count], name
    assert value(values, "millpond_layer_limit_bytes", stack="train", layer="pool") == 1 << 30
    assert value(values, "millpond_layer_failures_total", stack="train", layer="statistics") == 1
    assert value(values, "millpond_memory_live_bytes", stack="train", device="sim:0") == 1024
    stack.deallocate(block, 1000)


def test_budgets_over_one_pool_count_its_memory_once():
    pool = millpond.stack("cuda+pool")
    etl = mr.BudgetResourceAdaptor(pool, name="etl over one pool", limit="8MiB")
    train = mr.BudgetResourceAdaptor(pool, name="train over one pool", limit="8MiB")
    metrics.register(etl, "etl")
    metrics.register(train, "train")
    blocks = [(stack, stack.allocate(1 << 20)) for stack in (etl, train)]
    with pytest.raises(millpond.OutOfMemoryError):
        train.allocate(16 << 20)
    values = read(metrics.render())
    assert value(values, "millpond_memory_live_bytes", stack="etl + train") == 2 << 20
    assert not [key for key in values if key[0] == "millpond_memory_live_bytes" and ("stack", "etl") in key]
    for stack, failed in (("etl", 0), ("train", 1)):
        assert value(values, "millpond_failures_total", stack=stack, kind="budget") == failed
    for stack, block in blocks:
        stack.deallocate(block, 1 << 20)


def test_a_stack_without_figures_is_told_what_to_add():
    with pytest.raises(millpond.InvalidArgumentError, match="add the layer `statistics`, as in `cuda"):
        metrics.register(millpond.stack("cuda"), "plain")


@pytest.mark.parametrize("name", ['a "b"', "line\nbreak", "back\\slash\\n", "ü{}=,#"])
def test_any_name_comes_back(name):
    stack = millpond.stack("cuda+pool")
    metrics.register(stack, name)
    assert value(read(metrics.render()), "millpond_memory_live_bytes", stack=name) == 0


def test_a_stack_that_ends_is_gone():
    stack = millpond.stack("cuda+pool")
    metrics.register(stack, "short")
    assert 'stack="short"' in metrics.render()
    del stack
    assert 'stack="short"' not in metrics.render()
    for wrong in ("", "default", "a\0b"):
        with pytest.raises(ValueError):
            metrics.register(millpond.stack("cuda+pool"), wrong)
    for resource, name in ((None, "a"), (millpond.stack("cuda"), 1)):
        with pytest.raises(TypeError):
            metrics.register(resource, name)


def test_the_default_resource_has_a_name():
    millpond.mr.set_current_device_resource(millpond.stack("cuda+pool:initial=2MiB"))
    here = f"sim:{millpond.Device().ordinal}"
    values = read(metrics.render())
    assert value(values, "millpond_memory_reserved_bytes", device=here, stack="default") == 2 << 20


def test_budgets_of_a_tree():
    job = millpond.stack("cuda+budget:name=job of metrics,limit=8MiB")
    etl = millpond.stack("cuda+budget:name=etl of metrics,limit=4MiB,parent=job of metrics")
    block = etl.allocate(1 << 20)
    values = read(metrics.render())
    assert value(values, "millpond_budget_usage_bytes", budget="job of metrics") == 1 << 20
    assert value(values, "millpond_budget_limit_bytes", parent="job of metrics") == 4 << 20
    etl.deallocate(block, 1 << 20)
    del job


def test_scrapes_while_threads_make_and_drop_stacks():
    done = []

    def work(number):
        for _ in range(20):
            stack = millpond.stack("cuda+pool")
            metrics.register(stack, f"thread {number}")
            stack.deallocate(stack.allocate(1000), 1000)
            del stack
        done.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        read(metrics.render())
    assert sorted(done) == [0, 1, 2]
    assert "thread " not in metrics.render()


def test_a_registry_of_prometheus_client():
    stack = millpond.stack("cuda+pool")
    metrics.register(stack, "registry")
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(metrics.collector())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(metrics.collector())
    block = stack.allocate(1000)
    of = {"stack": "registry", "device": "sim:0"}
    assert registry.get_sample_value("millpond_memory_live_bytes", of) == 1024
    assert registry.get_sample_value("millpond_allocations_total", of) == 1
    from prometheus_client.openmetrics import exposition

    assert read(exposition.generate_latest(registry).decode()) == read(metrics.render())
    stack.deallocate(block, 1000)


def test_a_meter_of_opentelemetry():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader

    stack = millpond.stack("cuda+pool")
    metrics.register(stack, "meter")
    reader = InMemoryMetricReader()
    metrics.observe(MeterProvider([reader]).get_meter("millpond"))
    block = stack.allocate(1000)
    scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
    found = {
        metric.name: (metric, point.value)
        for metric in scope.metrics
        for point in metric.data.data_points
        if point.attributes.get("stack") == "meter"
    }
    live, bytes_live = found["millpond.memory.live"]
    assert (live.unit, live.data.is_monotonic, bytes_live) == ("By", False, 1024)
    calls, count = found["millpond.allocations"]
    assert (calls.unit, calls.data.is_monotonic, count) == ("{allocation}", True, 1)
    peak, bytes_peak = found["millpond.memory.peak"]
    assert isinstance(peak.data, Gauge) and bytes_peak == 1024
    assert {"hw.gpu.memory.usage", "hw.gpu.memory.limit"} <= {metric.name for metric in scope.metrics}
    stack.deallocate(block, 1000)


def test_nothing_is_imported_before_it_is_used():
    program = (
        "import sys, millpond; millpond.metrics.render();"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
