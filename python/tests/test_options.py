"""Each option of each layer can be given to the layer's class: the library has the table."""

from pathlib import Path

import pytest

import millpond
from millpond import mr

PLAN = Path(__file__).parent / "one_block.plan"

#: Programs in Rust alone can give this option.
NOT_FROM_TEXT = {("logging", "to")}


def cuda():
    return mr.CudaMemoryResource()


#: For each option of the table, how a program gives it to a class. The text of the result has the option.
GIVEN = {
    ("sam_headroom", "headroom"): lambda _: mr.SamHeadroomMemoryResource("1MiB"),
    ("cuda_async", "initial"): lambda _: mr.CudaAsyncMemoryResource(initial_pool_size="1MiB"),
    ("cuda_async", "release_threshold"): lambda _: mr.CudaAsyncMemoryResource(release_threshold="1MiB"),
    ("cuda_async", "max"): lambda _: mr.CudaAsyncMemoryResource(max="50%"),
    ("cuda_async", "reuse"): lambda _: mr.CudaAsyncMemoryResource(reuse="own"),
    ("cuda_async", "handles"): lambda _: mr.CudaAsyncMemoryResource(enable_ipc=True),
    ("cuda_async", "hw_decompress"): lambda _: mr.CudaAsyncMemoryResource(hw_decompress="off"),
    ("cuda_async_pinned", "numa"): lambda _: mr.CudaAsyncPinnedMemoryResource(numa=0),
    ("cuda_async_pinned", "initial"): lambda _: mr.CudaAsyncPinnedMemoryResource(initial="1MiB"),
    ("cuda_async_pinned", "release_threshold"): lambda _: mr.CudaAsyncPinnedMemoryResource(
        release_threshold="1MiB"
    ),
    ("cuda_async_pinned", "max"): lambda _: mr.CudaAsyncPinnedMemoryResource(max="1MiB"),
    ("cuda_async_pinned", "reuse"): lambda _: mr.CudaAsyncPinnedMemoryResource(reuse="follow"),
    ("cuda_async_pinned", "handles"): lambda _: mr.CudaAsyncPinnedMemoryResource(handles="fd"),
    ("cuda_async_view", "pool"): lambda _: mr.CudaAsyncViewMemoryResource(pool="current"),
    ("pool", "initial"): lambda _: mr.PoolMemoryResource(cuda(), "1MiB"),
    ("pool", "max"): lambda _: mr.PoolMemoryResource(cuda(), "1MiB", "8MiB"),
    ("pool", "pages"): lambda _: mr.PoolMemoryResource(cuda(), 0, pages="off"),
    ("pool", "decay"): lambda _: mr.PoolMemoryResource(cuda(), 0, decay=0.5),
    ("pool", "peers"): lambda _: mr.PoolMemoryResource(cuda(), 0, peers=[]),
    ("pool", "share"): lambda _: mr.PoolMemoryResource(cuda(), 0, share="fd"),
    ("pool", "reuse"): lambda _: mr.PoolMemoryResource(cuda(), 0, reuse="ordered/completed"),
    ("arena", "size"): lambda _: mr.ArenaMemoryResource(cuda(), "8MiB"),
    ("arena", "max"): lambda _: mr.ArenaMemoryResource(cuda(), "8MiB", max="16MiB"),
    ("arena", "dump_log_on_failure"): lambda path: mr.ArenaMemoryResource(cuda(), "8MiB", path / "dump.txt"),
    ("fixed_size", "block_size"): lambda _: mr.FixedSizeMemoryResource(cuda(), "4KiB", 0),
    ("fixed_size", "blocks"): lambda _: mr.FixedSizeMemoryResource(cuda(), "4KiB", 0, blocks=4),
    ("fixed_size", "preallocate"): lambda _: mr.FixedSizeMemoryResource(cuda(), "4KiB", 8),
    # Its class makes every bin itself, whether the program names exponents or sizes.
    ("binning", "min"): lambda _: mr.BinningMemoryResource(cuda(), 16, 18),
    ("binning", "max"): lambda _: mr.BinningMemoryResource(cuda(), 16, 18),
    ("binning", "bins"): lambda _: bins(1 << 20),
    ("aligned", "alignment"): lambda _: mr.AlignedResourceAdaptor(cuda(), "4KiB"),
    ("aligned", "threshold"): lambda _: mr.AlignedResourceAdaptor(cuda(), "4KiB", "64KiB"),
    ("budget", "name"): lambda _: budget("options"),
    ("budget", "limit"): lambda _: budget("options"),
    ("budget", "parent"): lambda _: budget("child", parent="above"),
    ("budget", "guaranteed"): lambda _: budget("child", parent="above", guaranteed="1MiB"),
    ("budget", "priority"): lambda _: budget("c", priority=3),
    ("budget", "wait"): lambda _: budget("d", wait="2s"),
    ("budget", "zero"): lambda _: budget("e", zero=True),
    ("fallback", "to"): lambda _: mr.FallbackResourceAdaptor(cuda(), "managed"),
    ("limiting", "limit"): lambda _: mr.LimitingResourceAdaptor(cuda(), "1MiB"),
    ("logging", "file"): lambda path: mr.LoggingResourceAdaptor(cuda(), path / "a.csv"),
    ("logging", "columns"): lambda path: mr.LoggingResourceAdaptor(
        cuda(), path / "b.csv", columns="extended"
    ),
    ("logging", "flush"): lambda path: mr.LoggingResourceAdaptor(cuda(), path / "c.csv", flush="buffered"),
    ("recording", "events"): lambda _: mr.RecordingResourceAdaptor(cuda(), events=1000),
    ("recording", "stacks"): lambda _: mr.RecordingResourceAdaptor(cuda(), stacks="live"),
    ("retry", "timeout"): lambda _: mr.RetryResourceAdaptor(cuda(), 0.5),
    ("thread_safe", "patience"): lambda _: mr.ThreadSafeResourceAdaptor(cuda(), patience=2),
    ("tracking", "stacks"): lambda _: mr.TrackingResourceAdaptor(cuda(), capture_stacks=True),
    ("plan", "file"): lambda _: mr.PlanMemoryResource(mr.PoolMemoryResource(cuda(), 0), PLAN),
}


def bins(size):
    made = mr.BinningMemoryResource(cuda())
    made.add_bin(size)
    return made


def budget(name, **options):
    return mr.BudgetResourceAdaptor(cuda(), name, "8MiB", **options)


@pytest.fixture(scope="module", autouse=True)
def _above():
    """A budget above others lives as long as they."""
    yield budget("above")


def test_each_layer_of_a_text_has_a_class():
    assert sorted(mr.layers().keys() - mr._BY_LAYER.keys()) == []
    # A program gives these two its functions.
    assert sorted(mr._BY_LAYER.keys() - mr.layers().keys()) == ["callback", "failure_callback"]


def test_each_option_of_a_text_can_be_given_to_a_class():
    table = {(layer, option) for layer, options in mr.layers().items() for option in options}
    assert sorted(table - NOT_FROM_TEXT - GIVEN.keys()) == [], "give these options to the layer's class"
    assert sorted(GIVEN.keys() - table) == []


@pytest.mark.parametrize(("layer", "option"), GIVEN, ids=":".join)
def test_an_option_reaches_its_layer(layer, option, tmp_path):
    try:
        made = GIVEN[layer, option](tmp_path)
    except millpond.UnsupportedError as error:
        pytest.skip(f"{layer}: {error}")
    assert type(made) is mr._BY_LAYER[layer]
    outermost = made.text.rsplit("+", 1)[-1]
    wanted = "bins" if layer == "binning" else option
    assert outermost.startswith(f"{layer}:") and f"{wanted}=" in outermost, made.text
    # The text of the class builds the same stack.
    assert millpond.stack(made.text, made.device).text == made.text


def test_a_text_given_to_an_option_stays_in_the_option():
    for wrong in ("own,max=1MiB", "own+statistics", 'own"', "", "a\nb"):
        with pytest.raises(millpond.MillpondError):
            mr.CudaAsyncMemoryResource(reuse=wrong)
    for wrong in (1, b"own", ["own"]):
        with pytest.raises(TypeError, match="`reuse` must be a text"):
            mr.CudaAsyncMemoryResource(reuse=wrong)
    with pytest.raises(ValueError, match="`decay` must be a number of seconds"):
        mr.PoolMemoryResource(cuda(), 0, decay=-1)
    with pytest.raises(ValueError, match="not both"):
        mr.CudaAsyncViewMemoryResource(1, pool="default")


def test_the_package_of_rmm_has_the_same_classes():
    import millpond.compat.rmm.mr as compat

    for layer, kind in mr._BY_LAYER.items():
        assert getattr(compat, kind.__name__) is kind, layer
