"""Memory snapshots in PyTorch's format: of any stack, and through PyTorch's own functions."""

import pickle
import threading

import pytest

import millpond
from millpond import _library

#: The keys that PyTorch's `_memory_viz.py` and `MemoryViz.js` read, and the type of each.
SNAPSHOT = {"segments": list, "device_traces": list, "allocator_settings": dict, "external_annotations": list}
SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple,
    "is_expandable": bool, "frames": list, "blocks": list,
}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
ENTRY = {"action": str, "addr": int, "size": int, "stream": int, "time_us": int}
FRAME = {"name": str, "filename": str, "line": int}
ACTIONS = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom",
}


@pytest.fixture(autouse=True)
def _no_history():
    yield
    millpond.stop_memory_history()


def of_types(data, types):
    return {key: type(value) for key, value in data.items()} == types


def check_format(snapshot):
    assert of_types(snapshot, SNAPSHOT)
    for segment in snapshot["segments"]:
        assert of_types(segment, SEGMENT) and segment["device"] < len(snapshot["device_traces"])
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        address = segment["address"]
        for block in segment["blocks"]:
            assert of_types(block, BLOCK) and block["address"] == address
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
            address += block["size"]
        sizes = {state: 0 for state in ("active_allocated", "active_pending_free", "inactive")}
        for block in segment["blocks"]:
            sizes[block["state"]] += block["size"]
        assert segment["allocated_size"] == sizes["active_allocated"]
        assert segment["active_size"] == sizes["active_allocated"] + sizes["active_pending_free"]
    for entry in entries(snapshot):
        assert entry["action"] in ACTIONS
        keys = dict(entry)
        for frame in keys.pop("frames", []):
            assert of_types(frame, FRAME)
        if entry["action"] == "oom":
            keys["addr"] = keys.pop("device_free")
        assert of_types(keys, ENTRY)


def entries(snapshot):
    return [entry for trace in snapshot["device_traces"] for entry in trace]


def actions(snapshot):
    return [entry["action"] for entry in entries(snapshot)]


def live(snapshot):
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {block["address"]: block["requested_size"] for block in blocks if block["state"] != "inactive"}


def remembered(nbytes, resource):
    """A function whose name must be in the stack of its allocation."""
    return millpond.DeviceBuffer(size=nbytes, mr=resource)


STACKS = ["cuda+pool", "cuda+pool:pages=off", "cuda+arena:size=64MiB", "cuda+tracking"]


@pytest.mark.parametrize("text", STACKS)
def test_a_snapshot_has_the_live_blocks_of_a_stack(text, tmp_path):
    resource = millpond.stack(text)
    kept = [millpond.DeviceBuffer(size=size, mr=resource) for size in (10, 5000, 3 << 20)]
    millpond.DeviceBuffer(size=999, mr=resource)
    snapshot = millpond.memory_snapshot(tmp_path / "memory.pickle", resource=resource)
    check_format(snapshot)
    assert live(snapshot) == {buffer.ptr: buffer.size for buffer in kept}
    assert entries(snapshot) == [], "nothing was recorded"
    assert pickle.loads((tmp_path / "memory.pickle").read_bytes()) == snapshot
    assert snapshot["allocator_settings"]["millpond"] == text


def test_the_default_resource_is_the_default():
    millpond.mr.set_current_device_resource(millpond.stack("cuda+pool"))
    buffer = millpond.DeviceBuffer(size=1000)
    assert live(millpond.memory_snapshot()) == {buffer.ptr: 1000}
    with pytest.raises(millpond.UnsupportedError, match="use a pool"):
        millpond.memory_snapshot(resource=millpond.stack("cuda"))


def test_the_history_names_the_line_that_allocated():
    resource = millpond.stack("cuda+pool")
    millpond.record_memory_history()
    kept = [remembered(1000 * number, resource) for number in (1, 2, 3)]
    del kept[0]
    snapshot = millpond.memory_snapshot(resource=resource)
    check_format(snapshot)
    allocated = [entry for entry in entries(snapshot) if entry["action"] == "alloc"]
    assert [entry["size"] for entry in allocated] == [1000, 2000, 3000]
    first = remembered.__code__.co_firstlineno
    for entry in allocated:
        frame, caller = entry["frames"][:2]
        assert frame == {"name": "remembered", "filename": __file__, "line": first + 2}
        assert caller["name"].startswith("test_the_history") and caller["filename"] == __file__
    assert len({id(entry["frames"]) for entry in allocated}) == 1, "equal stacks are written once"
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    of_live = [block for block in blocks if block["state"] != "inactive"]
    assert len(of_live) == 2 and all(block["frames"][0]["name"] == "remembered" for block in of_live)
    assert actions(snapshot)[-2:] == ["free_requested", "free_completed"]
    assert "frames" not in entries(snapshot)[-1]


def test_each_kind_of_stacks_is_captured():
    resource = millpond.stack("cuda+pool")
    for stacks, of_alloc, of_free, of_block in [
        ("off", False, False, False), ("live", False, False, True), ("allocations", True, False, True),
        ("all", True, True, True),
    ]:
        millpond.record_memory_history(stacks=stacks, clear_history=True)
        kept = remembered(1000, resource)
        remembered(3 << 20, resource)
        snapshot = millpond.memory_snapshot(resource=resource)
        has = {entry["action"]: bool(entry.get("frames")) for entry in entries(snapshot)}
        assert (has["alloc"], has["free_requested"]) == (of_alloc, of_free), stacks
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        block = next(block for block in blocks if block["address"] == kept.ptr)
        assert bool(block["frames"]) == of_block, stacks
        del kept
    with pytest.raises(ValueError, match="`stacks` must be one of"):
        millpond.record_memory_history(stacks="python")
    with pytest.raises(ValueError, match="max_entries"):
        millpond.record_memory_history(-1)


def test_a_ring_keeps_the_last_events_and_its_end_forgets_all():
    resource = millpond.stack("cuda+pool")
    millpond.record_memory_history(7, stacks="off")
    for size in range(1, 30):
        millpond.DeviceBuffer(size=size, mr=resource)
    recorded = entries(millpond.memory_snapshot(resource=resource))
    assert len(recorded) == 7 and recorded[-1]["size"] == 29
    millpond.record_memory_history(7, stacks="off")  # the same again changes nothing
    assert len(entries(millpond.memory_snapshot(resource=resource))) == 7
    millpond.stop_memory_history()
    millpond.DeviceBuffer(size=5, mr=resource)
    assert entries(millpond.memory_snapshot(resource=resource)) == []


def test_threads_are_recorded_each_with_its_stack():
    resource = millpond.stack("cuda+pool")
    millpond.record_memory_history()

    def work(number):
        for _ in range(50):
            millpond.DeviceBuffer(size=number, mr=resource)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = millpond.memory_snapshot(resource=resource)
    check_format(snapshot)
    allocated = [entry for entry in entries(snapshot) if entry["action"] == "alloc"]
    assert sorted(entry["size"] for entry in allocated) == sorted([1, 2, 3, 4] * 50)
    assert all(entry["frames"][0]["name"].endswith("work") for entry in allocated)


def test_a_failed_request_is_an_event():
    resource = millpond.stack("cuda+pool")
    millpond.record_memory_history()
    with pytest.raises(millpond.OutOfMemoryError):
        remembered(1 << 50, resource)
    snapshot = millpond.memory_snapshot(resource=resource)
    check_format(snapshot)
    (failed,) = [entry for entry in entries(snapshot) if entry["action"] == "oom"]
    assert failed["size"] == 1 << 50 and failed["device_free"] > 0
    assert failed["frames"][0]["name"] == "remembered"


def test_the_adaptor_has_a_history_of_its_own():
    resource = millpond.stack("cuda+pool+recording:stacks=allocations")
    buffer = remembered(1000, resource)
    snapshot = millpond.memory_snapshot(resource=resource)
    check_format(snapshot)
    assert actions(snapshot) == ["segment_map", "alloc"]
    assert entries(snapshot)[1]["frames"][0]["name"] == "remembered"
    assert live(snapshot) == {buffer.ptr: 1000}


# --- Through PyTorch's functions ---


@pytest.fixture
def served(torch):
    import millpond.torch as ours

    ours.use("cuda+pool")
    yield torch.cuda.memory
    ours.restore_statistics()


def test_pytorchs_functions_answer_in_its_format(served, tmp_path):
    early = _library.malloc(2000, 0, None)
    served._record_memory_history(max_entries=100_000)
    blocks = [_library.malloc(size, 0, None) for size in (100, 3 << 20)]
    _library.free(blocks[0], 0, 0, None)
    snapshot = served._snapshot()
    check_format(snapshot)
    assert live(snapshot) == {early: 2000, blocks[1]: 3 << 20}
    events = [action for action in actions(snapshot) if not action.startswith("segment")]
    assert events == ["alloc", "alloc", "free_requested", "free_completed"]
    assert all(entry["frames"] for entry in entries(snapshot) if entry["action"] == "alloc")
    served._dump_snapshot(str(tmp_path / "dump.pickle"))
    assert pickle.loads((tmp_path / "dump.pickle").read_bytes()) == served._snapshot()
    served._record_memory_history(enabled=None)
    assert entries(served._snapshot()) == []
    for block in (early, blocks[1]):
        _library.free(block, 0, 0, None)


def test_a_block_that_another_stream_uses_waits(served):
    served._record_memory_history()
    device = millpond.Device()
    stream = millpond.Stream()
    ptr = _library.malloc(1 << 20, 0, None)
    _library.record_stream(ptr, stream.ptr)
    _library.free(ptr, 0, 0, None)
    snapshot = served._snapshot()
    check_format(snapshot)
    requested = actions(snapshot).count("free_requested")
    completed = actions(snapshot).count("free_completed")
    states = [block["state"] for segment in snapshot["segments"] for block in segment["blocks"]]
    assert requested == 1 and states.count("active_pending_free") == requested - completed
    device.synchronize()
    _library.free(_library.malloc(5000, 0, None), 0, 0, None)  # gives back what has passed
    snapshot = served._snapshot()
    assert actions(snapshot).count("free_completed") == 2 and live(snapshot) == {}


@pytest.mark.parametrize("arguments", [
    {"enabled": "state"}, {"enabled": "all", "context": "alloc"}, {"enabled": "all", "context": None},
    {"enabled": True, "trace_alloc_max_entries": 50, "trace_alloc_record_context": True},
    {"stacks": "python", "max_entries": 50, "device": "cuda:0", "compile_context": True},
    {"skip_actions": ["free_requested", "segment_map"]},
])
def test_pytorchs_arguments_are_understood(served, arguments):
    served._record_memory_history(**arguments)
    ptr, kept = _library.malloc(100, 0, None), _library.malloc(5000, 0, None)
    _library.free(ptr, 0, 0, None)
    snapshot = served._snapshot()
    check_format(snapshot)
    seen = set(actions(snapshot))
    if arguments.get("enabled") == "state":
        assert seen == set()
    else:
        assert {"alloc", "free_completed"} <= seen and not seen & set(arguments.get("skip_actions", ()))
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    frames = next(block["frames"] for block in blocks if block["address"] == kept)
    assert bool(frames) == (arguments.get("context", "all") is not None)
    _library.free(kept, 0, 0, None)


def test_wrong_arguments_are_refused(served):
    for wrong in ({"enabled": "yes"}, {"context": "free"}, {"skip_actions": ["malloc"]}):
        with pytest.raises(ValueError):
            served._record_memory_history(**wrong)
