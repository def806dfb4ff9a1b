"""Writes the PyTorch memory snapshots that the tests of `import` read.

    python make.py FOLDER [NAME ...]

Needs a CUDA device and PyTorch 2.11 or later. Each program runs in its own process, because PyTorch reads its
allocator's settings only once. Writes one `NAME.pickle.gz` per program to FOLDER, and `facts.json` with
PyTorch's own counters. Cuts file names in stacks to the part below `site-packages`, so that snapshots do not
name the machine.
"""

import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20


def start(**options):
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(**{"max_entries": 1 << 20, "stacks": "python", **options})
    return torch


def network(torch, width=256, layers=4):
    return torch.nn.Sequential(
        *[
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
    ).cuda()


def train(torch, shapes, width=256, layers=4, model=None):
    model = model or network(torch, width, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (batch, length) in enumerate(shapes):
        with torch.profiler.record_function(f"step {step}"):
            loss = model(torch.randn(batch, length, width, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return model, optimizer


CHANGING = [(4 + 3 * (k % 4), 64 + (37 * k) % 200) for k in range(10)]


def plain():
    torch = start()
    return train(torch, [(8, 128)] * 4)


def small():
    torch = start()
    kept = [torch.empty(1000 * k, dtype=torch.uint8, device="cuda") for k in range(1, 20)]
    del kept[3:9]
    kept.append(torch.empty(5000, dtype=torch.uint8, device="cuda"))
    return kept


def late():
    import torch

    kept = train(torch, [(8, 128)] * 2)
    start()
    train(torch, [(8, 160)] * 2, model=kept[0])
    return kept


def shapes():
    torch = start()
    return train(torch, CHANGING)


def churn(torch, rounds=600, seed=7, live=48, catch=()):
    """Keeps blocks of many sizes and lifetimes. After an error of `catch`, frees half of them."""
    import random

    draw = random.Random(seed)
    kept = []
    for _ in range(rounds):
        size = int(2 ** draw.uniform(8, 25.5))
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except catch:
            del kept[::2]
        while len(kept) > live or (kept and draw.random() < 0.35):
            kept.pop(draw.randrange(len(kept)))
    return kept


def mixed():
    return churn(start())


def empty_cache():
    torch = start()
    kept = churn(torch, 300)
    torch.cuda.empty_cache()
    return kept, churn(torch, 300, seed=8)


def streams():
    torch = start()
    side = torch.cuda.Stream()
    kept = []
    for k in range(60):
        block = torch.empty((1 + k % 7) * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            block.record_stream(side)
            other = torch.empty((1 + k % 5) * 3 * MIB, dtype=torch.uint8, device="cuda")
        other.record_stream(torch.cuda.current_stream())
        del block, other
        if k % 10 == 9:
            torch.cuda.synchronize()
            kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
    return kept


def held():
    """Ends while two freed blocks wait for another stream."""
    torch = start()
    side = torch.cuda.Stream()
    kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    with torch.cuda.stream(side):
        torch.cuda._sleep(4_000_000_000)
        kept[0].record_stream(side)
        kept[1].record_stream(side)
    del kept[:2]
    return kept


def limit(torch, bytes):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(bytes / total)


def out_of_memory():
    torch = start()
    limit(torch, 600 * MIB)
    seen = []

    def observe(device, alloc, device_alloc, device_free):
        seen.append(take(torch))

    torch._C._cuda_attach_out_of_memory_observer(observe)
    kept = [torch.empty(12 * MIB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    # Frees every second block, so that no free piece is large.
    small = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    del kept[::2]
    try:
        torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    del small
    return {"snapshot": seen[0]}


def fragmented():
    """Runs out of memory although enough is free: blocks of 4 MiB pin segments of 20 MiB."""
    torch = start()
    limit(torch, 800 * MIB)
    kept = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(180)]
    kept = kept[2::5]
    try:
        kept.append(torch.empty(400 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    return kept


def retries():
    torch = start()
    limit(torch, 450 * MIB)
    return churn(torch, 1500, seed=11, catch=torch.cuda.OutOfMemoryError)


def graph():
    torch = start()
    static = torch.randn(64, 1024, device="cuda")
    weight = torch.randn(1024, 1024, device="cuda")
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        (static @ weight).relu() @ weight
    torch.cuda.current_stream().wait_stream(warm)
    captured = []
    pool = None
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = (static @ weight).relu() @ weight
        pool = graph.pool()
        captured.append((graph, out))
    for graph, _ in captured:
        graph.replay()
    torch.cuda.synchronize()
    return captured, static, weight


def ring():
    torch = start(max_entries=100)
    return churn(torch, 400)


def state_only():
    torch = start(enabled="state")
    return churn(torch, 200)


def no_frames():
    torch = start(context=None)
    return churn(torch, 200)


def skipped():
    torch = start(skip_actions=["free_requested"])
    return churn(torch, 200)


def metadata():
    torch = start()
    kept = []
    for name in ("weights", "<script>alert(1)</script>", "weights"):
        torch.cuda.memory._set_memory_metadata(name)
        kept.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.memory._set_memory_metadata("")
    return kept


def two_threads():
    import threading

    torch = start()
    kept = [None] * 4

    def work(k):
        kept[k] = churn(torch, 150, seed=k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return kept


# The program and the allocator's settings for each name.
PROGRAMS = {
    "plain": (plain, ""),
    "small": (small, ""),
    "late": (late, ""),
    "shapes": (shapes, ""),
    "mixed": (mixed, ""),
    "empty_cache": (empty_cache, ""),
    "threads": (two_threads, ""),
    "expandable": (shapes, "expandable_segments:True"),
    "expandable_mixed": (mixed, "expandable_segments:True"),
    "expandable_retries": (retries, "expandable_segments:True"),
    "expandable_streams": (streams, "expandable_segments:True"),
    "max_split": (mixed, "max_split_size_mb:21"),
    "max_split_retries": (retries, "max_split_size_mb:21"),
    "roundup": (mixed, "roundup_power2_divisions:4"),
    "roundup_list": (mixed, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
    "garbage": (retries, "garbage_collection_threshold:0.6"),
    "streams": (streams, ""),
    "held": (held, ""),
    "out_of_memory": (out_of_memory, ""),
    "fragmented": (fragmented, ""),
    "retries": (retries, ""),
    "graph": (graph, ""),
    "ring": (ring, ""),
    "state_only": (state_only, ""),
    "no_frames": (no_frames, ""),
    "skipped": (skipped, ""),
    "metadata": (metadata, ""),
}


def cut(name):
    for mark in ("site-packages/", "dist-packages/"):
        if mark in name:
            return name.split(mark)[-1]
    return os.path.basename(name)


def anonymous(snapshot):
    """Cuts the file names in frames. The snapshot shares frames, so each is cut once."""
    done = set()

    def frames(entry):
        for frame in entry.get("frames", ()):
            if id(frame) not in done:
                done.add(id(frame))
                frame["filename"] = cut(frame["filename"])

    for trace in snapshot.get("device_traces", ()):
        for entry in trace:
            frames(entry)
    for segment in snapshot["segments"]:
        frames(segment)
        for block in segment["blocks"]:
            frames(block)
    return snapshot


def take(torch):
    return anonymous(torch.cuda.memory._snapshot())


def write(folder, name, data):
    with open(os.path.join(folder, name), "wb") as file:
        # The header has no time and no name, so that equal snapshots give equal files.
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed:
            packed.write(data)


def one(folder, name):
    import torch

    kept = PROGRAMS[name][0]()
    gc.collect()
    free, total = torch.cuda.mem_get_info()
    snapshot = kept["snapshot"] if isinstance(kept, dict) else take(torch)
    write(folder, name + ".pickle.gz", pickle.dumps(snapshot))
    stats = torch.cuda.memory_stats()
    wanted = [
        "allocated_bytes.all.peak", "allocated_bytes.all.current", "active_bytes.all.peak",
        "active_bytes.all.current", "reserved_bytes.all.peak", "reserved_bytes.all.current",
        "requested_bytes.all.peak", "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free",
        "inactive_split_bytes.all.current",
    ]
    facts = {key: stats.get(key) for key in wanted}
    facts.update(torch=torch.__version__, conf=PROGRAMS[name][1], device_free=free, device_total=total)
    traces = snapshot.get("device_traces", [])
    facts["events"] = sum(map(len, traces))
    actions = {}
    for trace in traces:
        for entry in trace:
            actions[entry["action"]] = actions.get(entry["action"], 0) + 1
    facts["actions"] = actions
    if name == "small":
        for protocol in (2, 3, 4, 5):
            write(folder, f"protocol_{protocol}.pickle.gz", pickle.dumps(snapshot, protocol))
        from torch.cuda import _memory_viz

        for plot in ("trace_plot", "segment_plot"):
            try:
                page = getattr(_memory_viz, plot)(snapshot)
                write(folder, f"{plot}.html.gz", page.encode())
            except Exception as error:
                facts[plot] = repr(error)
    print(json.dumps(facts))


def run(folder, name):
    environment = dict(os.environ, ONE="1", PYTORCH_CUDA_ALLOC_CONF=PROGRAMS[name][1])
    done = subprocess.run(
        [sys.executable, __file__, folder, name], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        print(f"{name}:\n{done.stderr[-1500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    folder, names = sys.argv[1], sys.argv[2:] or list(PROGRAMS)
    os.makedirs(folder, exist_ok=True)
    if os.environ.get("ONE"):
        return one(folder, names[0])
    with ThreadPoolExecutor(max_workers=6) as programs:
        results = dict(zip(names, programs.map(lambda name: run(folder, name), names)))
    failed = [name for name, facts in results.items() if facts is None]
    with open(os.path.join(folder, "facts.json"), "w") as file:
        json.dump(results, file, indent=1, sort_keys=True)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
