"""A job of two ranks on two GPUs, with PyTorch's own allocator and over `millpond.torch.use`.

    python ddp_job.py [--steps 300] [--json FILE]

Each run prints one line of JSON: the kind of job (DDP, FSDP, or NCCL's collectives and sends with checked
contents), the order of its first lines, each rank's losses, milliseconds a step and reserved MiB, the MiB
that the job uses on each GPU by nvidia-smi, and the other devices on which a rank has a context. Before them
a line for each library lists the devices on which a process with LOCAL_RANK=1 has contexts; `--touch` prints
only these lines. The last line is the verdict. If a job runs several times, the verdict uses the means. The
exit code is 1 if the verdict is bad. A run takes under six minutes.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

RANKS = 2
STACK = "cuda+pool"
KINDS = ("ddp", "fsdp", "nccl")
#: The number of runs of each job. The overlap of NCCL's blocks varies from run to run.
REPEATS = {"ddp": 1, "fsdp": 1, "nccl": 4}
#: The first lines of a rank: without millpond; `use(stack, rank)` above `set_device`; `use(stack)` with
#: LOCAL_RANK.
ORDERS = ("pytorch", "use_rank", "use_first")


# --- One rank ---


def contexts():
    """Return the devices whose primary context this process holds. The call makes no context."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count, found = ctypes.c_int(), []
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    for device in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        found += [device] if active.value else []
    return found


def begin(order, rank):
    """Run the first lines of a program in an order. Return millpond's message if it refused."""
    import torch

    if order == "pytorch":
        torch.cuda.set_device(rank)
        return None
    import millpond.torch

    if order == "device_first":
        torch.cuda.set_device(rank)
        try:
            millpond.torch.use(STACK)
        except RuntimeError as error:
            return str(error)
        return "it was not refused"
    if order == "use_rank":
        millpond.torch.use(STACK, rank)
    else:
        millpond.torch.use(STACK)
    assert set(contexts()) <= {rank}, f"use() made contexts on {contexts()}"
    torch.cuda.set_device(rank)
    return None


def make_model(torch, kind):
    nn = torch.nn
    torch.manual_seed(1)
    layers = [
        nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(6)
    ]
    model = nn.Sequential(*layers, nn.Linear(512, 512)).cuda()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def train(kind, steps):
    """Train a small transformer. Return the losses and the milliseconds of a step."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.use_deterministic_algorithms(True)
    model = make_model(torch, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(7 + torch.distributed.get_rank())
    losses, times = [], []
    for step in range(steps):
        start = time.perf_counter()
        # The lengths differ, so that the allocator has work.
        shape = 8, 32 + 16 * (step % 9), 512
        data = torch.randn(shape, generator=generator).cuda(non_blocking=True)
        with sdpa_kernel(SDPBackend.MATH):
            loss = (model(data) - data).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 10 == 9:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    groups = [sum(times[at : at + 10]) * 100 for at in range(20, len(times) - 9, 10)]
    return [loss.item() for loss in losses], statistics.median(groups)


def exchange(steps):
    """Run NCCL's collectives and sends with memory that is dropped at once. Return a check of the
    contents."""
    import torch
    import torch.distributed as dist

    rank, seen, times = dist.get_rank(), [], []
    other = 1 - rank
    for step in range(steps):
        start = time.perf_counter()
        count = 1024 * (1 + 37 * (step % 23))
        mine = torch.full((count,), float(step + rank), device="cuda")
        work = dist.all_reduce(mine, async_op=True)
        both = torch.empty(RANKS * count, device="cuda")
        dist.all_gather_into_tensor(both, torch.full((count,), 3.0 * step + rank, device="cuda"))
        part = torch.empty(count, device="cuda")
        dist.reduce_scatter_tensor(part, torch.arange(RANKS * count, device="cuda", dtype=torch.float32))
        swapped = torch.empty(RANKS * count, device="cuda")
        dist.all_to_all_single(swapped, torch.full((RANKS * count,), float(rank), device="cuda"))
        told = torch.full((count,), float(10 + rank), device="cuda")
        dist.broadcast(told, src=step % RANKS)
        received = torch.empty(count, device="cuda")
        sent = [
            dist.P2POp(dist.isend, torch.full((count,), 5.0 + rank + step, device="cuda"), other),
            dist.P2POp(dist.irecv, received, other),
        ]
        for request in dist.batch_isend_irecv(sent):
            request.wait()
        del sent
        work.wait()
        expected = torch.arange(count, device="cuda", dtype=torch.float32)
        expected = RANKS * (expected + rank * count)
        right = [
            (mine == 2 * step + 1).all(), (both[:count] == 3 * step).all(),
            (both[count:] == 3 * step + 1).all(), (part == expected).all(),
            (swapped[:count] == 0).all(), (swapped[count:] == 1).all(),
            (told == 10 + step % RANKS).all(), (received == 5 + other + step).all(),
        ]
        seen.append(torch.stack(right))
        times.append((time.perf_counter() - start) * 1e3)
    wrong = int((~torch.stack(seen)).sum())
    assert wrong == 0, f"{wrong} contents are wrong"
    return [float(len(seen) * 8)], statistics.median(times)


def rank_main(kind, order, steps):
    rank = int(os.environ["LOCAL_RANK"])
    refusal = begin(order, rank)
    if order == "device_first":
        print(json.dumps({"rank": rank, "refusal": refusal}), flush=True)
        return
    import torch
    import torch.distributed as dist

    options = {"device_id": torch.device("cuda", rank)} if kind != "ddp" else {}
    dist.init_process_group("nccl", **options)
    losses, ms = exchange(steps) if kind == "nccl" else train(kind, steps)
    dist.barrier(device_ids=[rank])
    torch.cuda.synchronize()
    said = {
        "rank": rank,
        "ms": round(ms, 3),
        "reserved_mib": torch.cuda.max_memory_reserved(rank) >> 20,
        "other_contexts": [device for device in contexts() if device != rank],
        "last_loss": losses[-1],
        "losses": hashlib.sha256(repr(losses).encode()).hexdigest()[:16],
    }
    print(json.dumps(said), flush=True)
    sys.stdin.readline()  # the memory is measured before any rank ends
    dist.destroy_process_group()


# --- The job ---


def used_mib():
    """Return the MiB in use on each GPU by all processes."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return [int(line) for line in lines][:RANKS]


def settled_mib():
    """Return the same once the GPUs have reclaimed the memory of ended processes."""
    before = used_mib()
    for _ in range(20):
        time.sleep(0.5)
        now = used_mib()
        if now == before:
            return now
        before = now
    return before


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def job(kind, order, steps):
    """Run a job of two ranks. Return its report."""
    idle, port = settled_mib(), free_port()
    ranks = []
    for rank in range(RANKS):
        environment = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "OMP_NUM_THREADS": "4",
        }
        command = [sys.executable, __file__, "--rank", kind, order, str(steps)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        ranks.append(subprocess.Popen(command, env=environment, **pipes))
    lines = [rank.stdout.readline() for rank in ranks]
    used = [now - then for now, then in zip(used_mib(), idle, strict=True)]
    # All at once, because the end of a process group waits for the other ranks.
    for rank in ranks:
        with contextlib.suppress(BrokenPipeError):
            rank.stdin.write("end\n")
            rank.stdin.flush()
    for rank in ranks:
        rank.communicate(timeout=120)
    codes = [rank.returncode for rank in ranks]
    said = [json.loads(line) if line.strip() else None for line in lines]
    return {"kind": kind, "order": order, "steps": steps, "codes": codes, "gpu_mib": used, "ranks": said}


def faults_of(runs):
    """Compare each run with PyTorch's own allocator. Return the faults as text."""
    faults = []
    base = {run["kind"]: run for run in runs if run["order"] == "pytorch"}
    mib = {}  # of each kind and order, on each GPU
    for run in runs:
        mib.setdefault((run["kind"], run["order"]), []).append(run["gpu_mib"])
    mib = {key: [statistics.mean(of_gpu) for of_gpu in zip(*used, strict=True)] for key, used in mib.items()}
    for run in runs:
        name = f"{run['kind']} {run['order']}"
        if run["codes"] != [0] * RANKS or None in run["ranks"]:
            faults.append(f"{name}: a rank failed")
            continue
        if run["order"] == "device_first":
            for said in run["ranks"]:
                device = f", {said['rank']}" if said["rank"] else ""
                wanted = f'millpond.torch.use("cuda+pool"{device})'
                if wanted not in said["refusal"] or "torch.cuda.set_device" not in said["refusal"]:
                    faults.append(f"{name}: the refusal does not name the line: {said['refusal']}")
            continue
        own = base.get(run["kind"])
        if run["order"] == "pytorch" or own is None or None in own["ranks"]:
            continue
        for said, theirs in zip(run["ranks"], own["ranks"], strict=True):
            rank = said["rank"]
            if said["losses"] != theirs["losses"]:
                losses = said["last_loss"], theirs["last_loss"]
                faults.append(f"{name}, rank {rank}: other losses than PyTorch's, at last {losses}")
            if not set(said["other_contexts"]) <= set(theirs["other_contexts"]):
                faults.append(f"{name}, rank {rank}: a context on {said['other_contexts']}")
    for (kind, order), used in mib.items():
        for device, least in enumerate(mib.get((kind, "pytorch"), used) if order in ORDERS else used):
            if used[device] > least:
                own = f"{used[device]:.0f} MiB on GPU {device}, and {least:.0f} with PyTorch's own"
                faults.append(f"{kind} {order}: {own}")
    return faults


# --- The devices on which a process has contexts, through each library ---

TOUCH = {
    "device": ("millpond.Device(), millpond.Device.find(1), millpond.Device.find(0)", []),
    "buffer": ("kept = millpond.DeviceBuffer(size=1000)", [1]),
    "stack": ("kept = millpond.stack('cuda+pool'); millpond.mr.set_current_device_resource(kept)", None),
    "torch": ("import torch; millpond.torch.use(); kept = torch.ones(9, device='cuda:1')", [1]),
    "torch_pool": (
        "import torch; torch.cuda.set_device(1)\n"
        "with millpond.torch.use_mem_pool(): kept = torch.ones(9, device='cuda:1')",
        [1],
    ),
    "cupy": ("import cupy; millpond.cupy.use(); cupy.cuda.Device(1).use(); kept = cupy.ones(9)", [1]),
    "numba": (
        "from numba import cuda; millpond.numba.use()\n"
        "cuda.select_device(1); kept = cuda.device_array(9)",
        [1],
    ),
    "cuda_core": (
        "from cuda.core import Device; Device(1).set_current()\n"
        "millpond.cuda_core.use(); kept = Device(1).allocate(99, stream=Device(1).default_stream)",
        [1],
    ),
    "environment": ("os.environ['MILLPOND_STACK'] = 'cuda+pool'; kept = millpond.DeviceBuffer(size=9)", [1]),
}


def touch_main(name):
    import millpond  # noqa: F401

    exec(TOUCH[name][0], {"millpond": millpond, "os": os})
    print(json.dumps(contexts()))


def touch(out):
    """Run each library in a process with LOCAL_RANK=1. Return the faults as text."""
    faults = []
    for name, (_, expected) in TOUCH.items():
        command = [sys.executable, __file__, "--touch-one", name]
        environment = os.environ | {"LOCAL_RANK": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            out({"touch": name, "skipped" if "No module named" in last else "failed": last})
            faults += [] if "No module named" in last else [f"{name}: {last}"]
            continue
        active = json.loads(done.stdout.splitlines()[-1])
        out({"touch": name, "contexts": active})
        if 0 in active or (expected is not None and active != expected):
            faults.append(f"{name}: contexts on {active}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", help="a file that gets the lines, too")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--touch", action="store_true", help="only which devices each library touches")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--touch-one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        kind, order, steps = options.rank
        return rank_main(kind, order, int(steps))
    if options.touch_one:
        return touch_main(options.touch_one)
    lines = []

    def out(said):
        lines.append(json.dumps(said))
        print(lines[-1], flush=True)

    faults = touch(out)
    if not options.touch:
        runs = []
        for kind in options.kinds:
            for _ in range(REPEATS[kind]):
                for order in ORDERS:
                    runs.append(job(kind, order, options.steps * (5 if kind == "nccl" else 1)))
                    out(runs[-1])
        runs.append(job("ddp", "device_first", 1))
        out(runs[-1])
        faults += faults_of(runs)
    out({"fine": not faults, "faults": faults})
    if options.json:
        with open(options.json, "w") as file:
            file.write("\n".join(lines) + "\n")
    return sys.exit(bool(faults))


if __name__ == "__main__":
    main()
