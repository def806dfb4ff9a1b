"""millpond.torch with the real PyTorch on a GPU, each mode in a separate process."""

import contextlib

import harness
import pytest

if __name__ != "__main__":
    harness.needs("torch")

MODES = ["none", "pool", "process"]
KEPT = []


def scope(mode):
    """Turn a mode on. Return the context for its allocations."""
    import millpond.torch

    if mode == "process":
        millpond.torch.use()
    return millpond.torch.use_mem_pool() if mode == "pool" else contextlib.nullcontext()


def train(mode):
    import torch

    entered = scope(mode)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    for kind in ("transformer", "convolutions"):
        with entered if kind == "transformer" else scope_again(mode):
            torch.manual_seed(1)
            print(kind, steps(torch, kind))
            torch.cuda.synchronize()
    if mode != "none":
        import millpond

        served = millpond.mr.get_current_device_resource().counts()
        peak = torch.cuda.max_memory_allocated()
        import sys

        print(f"peak of PyTorch {peak}, of millpond {served['peak_bytes_in_use']}", file=sys.stderr)
        assert served["peak_bytes_in_use"] >= 0.95 * peak > 0


def scope_again(mode):
    import millpond.torch

    return millpond.torch.use_mem_pool() if mode == "pool" else contextlib.nullcontext()


def steps(torch, kind):
    nn = torch.nn
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(256, 10))
        shapes = [(8, 32 + 16 * i, 256) for i in range(5)]
    else:
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(2), nn.Linear(1024, 10),
        )
        shapes = [(4 + 4 * i, 3, 32, 32) for i in range(5)]
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for shape in shapes:
        data = torch.randn(shape, device="cuda")
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def record_stream(mode):
    """Memory that another stream reads is not overwritten. Without `record_stream` it is."""
    import torch

    outcomes = {}
    with scope(mode):
        for is_recorded in (True, False):
            main, side = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(main):
                source = torch.ones(4 << 20, dtype=torch.uint8, device="cuda")
                target = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
            main.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(200_000_000)
                target.copy_(source, non_blocking=True)
            if is_recorded:
                source.record_stream(side)
            address = source.data_ptr()
            with torch.cuda.stream(main):
                del source
                later = torch.full((4 << 20,), 2, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            outcomes[is_recorded] = (bool((target == 1).all()), later.data_ptr() == address)
            del target, later
    assert outcomes[True] == (True, False), outcomes
    assert outcomes[False] == (False, True), f"the test cannot fail: {outcomes}"


def graph_scope(mode):
    """Turn a mode on. Return the arguments for `torch.cuda.graph`."""
    import ctypes

    import millpond.torch
    from millpond import _library

    if mode == "without_hooks":
        # millpond does not hear of PyTorch's captures.
        nothing = ctypes.cast(_library.library.millpond_abi_version, ctypes.c_void_p).value
        address_of = _library.address_of
        _library.address_of = lambda name: nothing if "pool" in name else address_of(name)
    if mode != "pool":
        millpond.torch.use("cuda+pool")
        return {}
    KEPT.append(millpond.torch.mem_pool("cuda+pool"))  # the pool ends with this object
    return {"pool": KEPT[0].id}


@contextlib.contextmanager
def loader(torch):
    """Run a thread that allocates on a separate stream, and check that its tensors keep their contents."""
    import threading

    stop, wrong, rounds = threading.Event(), [], [0]

    def load():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                tensors = [torch.full((1 << 14 << i % 7,), i, device="cuda") for i in range(16)]
                stream.synchronize()
                wrong.extend(i for i, tensor in enumerate(tensors) if not bool((tensor == i).all()))
                rounds[0] += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not wrong and rounds[0] > 0, (wrong, rounds)


def graph(mode):
    """No other work reuses a graph's memory. Without PyTorch's hooks it would."""
    import torch

    arguments = graph_scope(mode)
    static, stream = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()

    def work():
        return (static * 2 + 1).sqrt().square().sum()

    work()  # load the kernels
    torch.cuda.synchronize()
    before = harness.in_use()
    captured = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    results = []
    with loader(torch) if mode != "without_hooks" else contextlib.nullcontext():
        for graph in captured:  # the second graph shares the first one's memory
            kind = {"stream": stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, **kind, **arguments):
                results.append(work())
            arguments = {"pool": graph.pool()}
        with torch.cuda.stream(stream):
            others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(16)]
        torch.cuda.synchronize()
        for value in [1.0, 3.0] * 20:
            static.fill_(value)
            for graph, result in zip(captured, results, strict=True):
                graph.replay()
                torch.cuda.synchronize()
                assert abs(result.item() / ((2 * value + 1) * (1 << 20)) - 1) < 1e-3
    is_intact = all(bool((other == 7).all()) for other in others)
    assert harness.in_use() > 0
    assert is_intact == (mode != "without_hooks"), "the test cannot fail"
    if mode == "process":
        held = harness.in_use()
        del others
        del captured, graph
        torch.cuda.synchronize()
        assert harness.in_use() < held - 16 * (1 << 22)
        del result, results
        assert harness.in_use() <= before, "all that the graphs used went back"


def graph_training(mode):
    """Captures whole steps of training with their backward pass. The losses are the same as without a
    graph."""
    import torch

    arguments = graph_scope(mode)
    torch.use_deterministic_algorithms(True)

    def train(is_captured):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        data, losses = torch.zeros(256, 512, device="cuda"), []

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = (model(data) - data).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        def fill(number):
            data.copy_(torch.full((256, 512), 1.0 / (1 + number)))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for number in range(3):
                fill(number)
                losses.append(step().item())
        torch.cuda.current_stream().wait_stream(side)
        if is_captured:
            captured = torch.cuda.CUDAGraph()
            optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(captured, capture_error_mode="thread_local", **arguments):
                loss = step()
        for number in range(20):
            fill(number)
            if is_captured:
                captured.replay()
            else:
                loss = step()
            losses.append(loss.item())
        return losses

    with loader(torch):
        plain, captured = train(False), train(True)
    assert plain == captured, (plain, captured)


def statistics(mode):
    import torch

    import millpond
    import millpond.torch

    assert mode == "process"
    millpond.torch.use("cuda+pool")
    tensor = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
    torch.empty(0, device="cuda")
    assert torch.cuda.memory_allocated() >= 10 << 20
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    assert "Allocated memory" in torch.cuda.memory_summary()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    del tensor
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    with pytest.raises(RuntimeError, match="memory"):
        torch.empty(1 << 47, dtype=torch.uint8, device="cuda")
    for refused in (torch.cuda.memory_snapshot, lambda: torch.cuda.set_per_process_memory_fraction(0.5)):
        with pytest.raises(millpond.UnsupportedError):
            refused()


def compiled(mode):
    """`torch.compile` in the process-wide mode: without graphs, with graphs, and the error with graph
    trees."""
    import torch

    import millpond.torch

    assert mode == "process"
    millpond.torch.use("cuda+pool")
    torch.manual_seed(1)
    layers = torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    model = torch.nn.Sequential(*layers).cuda()
    data = [torch.randn(64, 256, device="cuda") for _ in range(4)]

    def run(function):
        with torch.no_grad():
            return [function(batch).clone() for batch in data]

    def is_close(results):
        return all(torch.allclose(*pair, atol=1e-4) for pair in zip(results, run(model), strict=True))

    assert is_close(run(torch.compile(model)))
    torch._dynamo.reset()
    # PyTorch's graph trees need checkpoints of its own allocator.
    with pytest.raises(RuntimeError, match="does not yet support|CheckpointState"):
        run(torch.compile(model, mode="reduce-overhead"))
    torch._dynamo.reset()
    torch._inductor.config.triton.cudagraph_trees = False
    assert is_close(run(torch.compile(model, mode="reduce-overhead")))


def out_of_memory(mode):
    import torch

    import millpond.torch

    assert mode == "pool"
    with millpond.torch.use_mem_pool(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 47, dtype=torch.uint8, device="cuda")


def test_the_loss_is_the_same_in_all_modes():
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    losses = {mode: harness.run(__file__, "train", mode, environment=environment).stdout for mode in MODES}
    assert losses["none"].count("[") == 2
    assert losses["pool"] == losses["none"]
    assert losses["process"] == losses["none"]


@pytest.mark.parametrize("mode", ["pool", "process"])
@pytest.mark.parametrize("name", ["record_stream", "graph", "graph_training"])
def test_program(name, mode):
    harness.run(__file__, name, mode, environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})


def test_the_test_of_graphs_finds_a_mode_that_hears_no_hooks():
    harness.run(__file__, "graph", "without_hooks")


def test_statistics():
    harness.run(__file__, "statistics", "process")


def test_compiled():
    harness.run(__file__, "compiled", "process")


def test_out_of_memory_in_a_pool():
    harness.run(__file__, "out_of_memory", "pool")


if __name__ == "__main__":
    harness.main(globals())
