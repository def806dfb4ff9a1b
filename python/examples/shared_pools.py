"""Two processes share blocks of the driver's pools, each on a GPU of its own.

python python/examples/shared_pools.py                                # on two GPUs, or twice on one
python python/examples/shared_pools.py --devices cuda:0 cuda:0 --blocks 200

Each side makes a pool, sends its file descriptor to the other side, and then shares blocks of random sizes:

1. The owner fills a block and waits for the copy. Then it sends the 64 bytes that describe the block.
2. The other side opens the block, compares its contents, and writes an answer into the block. It frees its
   block, waits for its stream, and only then says that it is done.
3. The owner compares the answer, and frees the block.

Simulated devices cannot share memory between processes. There, two threads of one process are the two sides.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
from typing import Any

import millpond
from millpond.compat.rmm.pylibrmm.device_buffer import copy_host_to_ptr

#: How many blocks are shared at a time.
BATCH = 50


class Link:
    """One end of a socket, which carries file descriptors and lines of JSON."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.lines: Any = end.makefile("rw")

    def swap_descriptors(self, fd: int) -> int:
        """Send a file descriptor, and return the other side's."""
        socket.send_fds(self.end, [b"p"], [fd])
        _, [received], _, _ = socket.recv_fds(self.end, 1, 1)
        return received

    def swap(self, message: Any) -> Any:
        """Send a message, and return the other side's."""
        print(json.dumps(message), file=self.lines, flush=True)
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the other side has ended")
        return json.loads(line)


def contents(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def open_and_answer(imported: millpond.mr.MemoryPool, shared: list[Any], stream: millpond.Stream) -> None:
    """Compare the other side's blocks, answer in them, and free them on this side."""
    blocks = []
    for data, size, seed in shared:
        block = imported.import_pointer(bytes.fromhex(data), size)
        copy = millpond.DeviceBuffer(size=size, stream=stream)
        copy.copy_from_device(block, stream)
        if copy.tobytes(stream) != contents(seed, size):
            raise SystemExit(f"a block of {size} bytes arrived with other contents")
        copy_host_to_ptr(contents(seed + 1, size), block.ptr, stream)
        blocks.append(block)
    for block in blocks:
        block.free(stream)
    stream.synchronize()


def share(link: Link, blocks: int, seed: int) -> dict[str, Any]:
    """Share blocks with the other side, on the current device. Returns what was done."""
    numbers, stream, own = random.Random(seed), millpond.Stream(), millpond.Device()
    pool = millpond.mr.MemoryPool(handles="fd", release_threshold="1GiB")
    fd = pool.export_fd()
    received = link.swap_descriptors(fd)
    os.close(fd)
    others = millpond.Device.find(link.swap(own.ordinal))
    imported = millpond.mr.MemoryPool.import_fd(received, device=others)
    os.close(received)
    if imported.access(own) != "read_write":
        imported.set_access("read_write", own)
    resource, total = pool.resource(), 0
    for first in range(0, blocks, BATCH):
        shared, buffers = [], []
        for _ in range(min(BATCH, blocks - first)):
            size, of_contents = numbers.randrange(1, 1 << 20), numbers.randrange(1 << 60)
            buffer = millpond.DeviceBuffer(size=size, stream=stream, mr=resource)
            buffer.copy_from_host(contents(of_contents, size), stream)
            shared.append((pool.export_pointer(buffer.ptr).hex(), size, of_contents))
            buffers.append((buffer, size, of_contents))
            total += size
        stream.synchronize()
        open_and_answer(imported, link.swap(shared), stream)
        link.swap("done")
        for buffer, size, of_contents in buffers:
            if buffer.tobytes(stream) != contents(of_contents + 1, size):
                raise SystemExit(f"a block of {size} bytes has another answer")
        # The other side is done, so the blocks may end.
        buffers.clear()
        del buffer
    stream.synchronize()
    left = {"used": pool.used_bytes}
    peak = {"used_high": pool.used_high, "reserved_high": pool.reserved_high}
    del imported
    link.swap("bye")
    return {"device": str(own.name), "ordinal": own.ordinal, "blocks": blocks, "bytes": total} | left | peak


def two_threads(blocks: int) -> list[dict[str, Any]]:
    """Share between two threads of this process."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda end, seed: results.append(share(Link(end), blocks, seed)), args=each)
        for each in zip(ends, (1, 2), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def two_processes(blocks: int, devices: list[str]) -> list[dict[str, Any]]:
    """Share between two new processes, each with its own current device."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    children = []
    for end, device, seed in zip(ends, devices, (1, 2), strict=True):
        command = [sys.executable, __file__, "--blocks", str(blocks), "--side", str(end.fileno()), str(seed)]
        environment = os.environ | {"MILLPOND_DEVICE": device}
        children.append(
            subprocess.Popen(command, pass_fds=[end.fileno()], env=environment, stdout=subprocess.PIPE)
        )
        end.close()
    answers = [child.communicate(timeout=300)[0] for child in children]
    return [json.loads(text) for child, text in zip(children, answers, strict=True) if not child.returncode]


def default_devices() -> list[str]:
    try:
        return ["cuda:0", f"cuda:{millpond.Device('cuda:1').ordinal}"]
    except millpond.NoDeviceError:
        return ["cuda:0", "cuda:0"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Share blocks of two pools between two processes.")
    parser.add_argument("--blocks", type=int, default=1000, help="how many blocks each side shares")
    parser.add_argument("--devices", nargs=2, metavar="DEVICE", help="such as cuda:0 cuda:1")
    parser.add_argument("--side", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        end, seed = given.side
        print(json.dumps(share(Link(socket.socket(fileno=end)), given.blocks, seed)))
        return 0
    is_simulated = given.devices is None and millpond.Device().is_simulated
    results = two_threads(given.blocks) if is_simulated else two_processes(
        given.blocks, given.devices or default_devices()
    )
    for result in results:
        print(json.dumps(result))
    is_good = len(results) == 2 and not any(result["used"] for result in results)
    print("both sides agree" if is_good else "FAILED")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
