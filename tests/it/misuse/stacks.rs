//! Stacks as text that cannot be read or built, and devices and defaults that do not fit.

use millpond::driver::DeviceSpec;
use millpond::resources::{
    BinningLayer, CudaMemoryResource, get_per_device_resource, set_per_device_resource,
};
use millpond::{DeviceId, DeviceMemoryResourceExt, Driver};

use super::bench::{Bench, Program, error, program};

/// Builds a stack from text, and returns the error's text.
macro_rules! text {
    ($mistake:literal, $text:expr, $says:expr $(,)?) => {
        program($mistake, |bench| error(bench.build($text)), $says)
    };
}

fn deep() -> String {
    let open = "cuda+fallback:to=(".repeat(40);
    format!("{open}cuda{}", ")".repeat(40))
}

pub(crate) const STACKS: &[Program] = &[
    text!(
        "an empty text",
        "",
        "invalid stack: ``: a layer's name is missing; write for example `cuda+pool:initial=1GiB,max=8GiB`"
    ),
    text!(
        "two plus signs",
        "cuda++pool",
        "invalid stack: `cuda++pool`: a layer's name is missing; write for example \
         `cuda+pool:initial=1GiB,max=8GiB`"
    ),
    text!(
        "a layer that there is not",
        "cuda+pol",
        "invalid stack: there is no layer `pol`; the layers are cuda, managed, cuda_async, cuda_async_view, \
         cuda_async_managed, cuda_async_pinned, pinned_host, host, system, sam_headroom, pool, fixed_size, \
         binning, arena, capture_scopes, plan, aligned, budget, fallback, limiting, logging, prefetch, \
         recording, retry, statistics, thread_safe, tracking; did you mean `pool`?"
    ),
    text!(
        "a parameter that there is not",
        "cuda+pool:size=1GiB",
        "invalid stack: `pool` has no parameter `size`; it accepts initial, max, pages, decay, peers, share, \
         reuse"
    ),
    text!(
        "a parameter of a layer that takes none",
        "cuda:size=1GiB+pool",
        "invalid stack: `cuda` takes no parameters; leave `size` out"
    ),
    text!(
        "a parameter that is given twice",
        "cuda+pool:max=1GiB,max=2GiB",
        "invalid stack: `max` of `pool` is given twice; leave one out"
    ),
    text!(
        "a parameter without a value",
        "cuda+pool:initial",
        "invalid stack: `cuda+pool:initial`: `initial` of `pool` is not of the form key=value; write for \
         example `cuda+pool:initial=1GiB,max=8GiB`"
    ),
    text!(
        "a resource of the driver above another",
        "cuda+managed",
        "invalid stack in `cuda+managed`: `managed` takes its memory from the driver and cannot go on \
         top of `cuda`; put it first"
    ),
    text!(
        "a pool on nothing",
        "pool",
        "invalid stack in `pool`: `pool` needs a resource below it; write for example `cuda+pool`"
    ),
    text!(
        "a parenthesis without its end",
        "cuda+fallback:to=(managed",
        "invalid stack: `cuda+fallback:to=(managed`: a `(` has no `)`; a value with `+` or `,` needs \
         quotes; write for example `cuda+pool:initial=1GiB,max=8GiB`"
    ),
    text!(
        "a quote without its end",
        "cuda+logging:file=\"log.csv",
        "invalid stack: `cuda+logging:file=\"log.csv`: a quote has no end; a quote inside quotes is written \
         twice; write for example `cuda+pool:initial=1GiB,max=8GiB`"
    ),
    program(
        "stacks inside of each other without end",
        |bench| {
            bench.call(deep(), "TEXT");
            error(bench.build(&deep()))
        },
        "invalid stack: `TEXT`: too many stacks are nested; write for example \
         `cuda+pool:initial=1GiB,max=8GiB`",
    ),
    text!(
        "a size without a unit that is known",
        "cuda+pool:initial=1GB2",
        "invalid stack in `cuda+pool:initial=1GB2`: `initial=1GB2` of `pool`: `1GB2` is \
         not a size: the unit is unknown; write for example 4096, 1GiB or 0.5GB"
    ),
    text!(
        "a negative size",
        "cuda+pool:initial=-1",
        "invalid stack in `cuda+pool:initial=-1`: `initial=-1` of `pool`: `-1` is not a \
         size: a size cannot be negative; write for example 4096, 1GiB or 0.5GB"
    ),
    text!(
        "more than all of the free memory",
        "cuda+pool:initial=110%",
        "invalid stack in `cuda+pool:initial=110%`: `initial=110%` of `pool`: `110%` is \
         not a percentage of free memory; write one from 0% to 100%"
    ),
    text!(
        "an initial size above the maximum",
        "cuda+pool:initial=64MiB,max=32MiB",
        "invalid argument in `cuda+pool:initial=64MiB,max=32MiB`: the pool's initial size of 64MiB exceeds \
         its maximum of 32MiB; lower `initial` or raise `max`"
    ),
    text!(
        "a maximum beyond the device",
        "cuda+pool:max=1TiB",
        "invalid argument in `cuda+pool:max=1TiB`: the pool's maximum of 1TiB exceeds the 256MiB that \
         DEVICE has; lower `max`, or leave it out"
    ),
    text!(
        "an initial size that the device has not",
        "cuda+pool:initial=200GiB",
        "out of memory for 200GiB on stream 0 of DEVICE in `cuda+pool:initial=200GiB`: allocating the pool's \
         initial size: 199.75GiB more is needed\n\
         \x20 the device has 256MiB in all: request less at a time, or use managed memory if the device \
         has it\n\
         \x20 the device has 256MiB free of 256MiB"
    ),
    text!(
        "pages that are perhaps on",
        "cuda+pool:pages=maybe",
        "invalid stack in `cuda+pool:pages=maybe`: `pages=maybe` of `pool`: `pages` must \
         be auto, on or off, not `maybe`"
    ),
    text!(
        "pages over managed memory",
        "managed+pool:pages=on",
        "invalid argument in `managed+pool:pages=on`: the pool cannot map pages: its upstream is not `cuda`; \
         leave pages=on out"
    ),
    text!(
        "pages with a tiny maximum",
        "cuda+pool:pages=on,max=1MiB",
        "invalid argument in `cuda+pool:pages=on,max=1MiB`: the pool cannot map pages: its maximum is \
         smaller than a page of 2MiB; leave pages=on out"
    ),
    text!(
        "descriptors without pages",
        "cuda+pool:pages=off,share=fd",
        "invalid argument in `cuda+pool:pages=off,share=fd`: share=fd needs a pool that maps pages: \
         directly over `cuda`, without pages=off; for CUDA's legacy IPC handles use pages=off without share"
    ),
    text!(
        "a way to share that there is not",
        "cuda+pool:share=ipc",
        "invalid stack in `cuda+pool:share=ipc`: `share=ipc` of `pool`: `share` must be \
         none or fd, not `ipc`"
    ),
    text!(
        "a peer that is no number",
        "cuda+pool:peers=all",
        "invalid stack in `cuda+pool:peers=all`: `peers=all` of `pool`: `peers` must be \
         auto, none, or device numbers such as 0/1, not `all`"
    ),
    text!(
        "a decay in no time",
        "cuda+pool:decay=soon",
        "invalid stack in `cuda+pool:decay=soon`: `decay=soon` of `pool`: `decay` must be \
         off, or a time such as 500ms, 10s or 2min, not `soon`"
    ),
    text!(
        "a decay over a month",
        "cuda+pool:decay=720h",
        "invalid stack in `cuda+pool:decay=720h`: `decay=720h` of `pool`: `decay` must be \
         off, or a time such as 500ms, 10s or 2min, not `720h`"
    ),
    text!(
        "a step of reuse between streams that there is not",
        "cuda+pool:reuse=always",
        "invalid stack in `cuda+pool:reuse=always`: `reuse=always` of `pool`: `always` is \
         no way to reuse blocks; write own, or some of ordered/completed/waited"
    ),
    text!(
        "blocks of no bytes",
        "cuda+fixed_size:block_size=0",
        "invalid argument in `cuda+fixed_size:block_size=0`: cannot make 128 blocks of 0 bytes; write for \
         example block_size=1MiB,blocks=128"
    ),
    text!(
        "an arena of some bytes",
        "cuda+arena:size=4KiB",
        "invalid argument in `cuda+arena:size=4KiB`: an arena of 4096 bytes is too small: it needs at \
         least 1MiB; raise `size`"
    ),
    text!(
        "bins and their exponents",
        "cuda+binning:bins=4KiB,min=18",
        "invalid stack in `cuda+binning:bins=4KiB,min=18`: `binning` takes bins, or min and max, but \
         not both; leave one out"
    ),
    text!(
        "bins from large to small",
        "cuda+binning:min=22,max=18",
        "invalid argument in `cuda+binning:min=22,max=18`: there are no bins from 2^22 to 2^18 bytes: min \
         must be at most max, and max must be at most 40; write for example min=18,max=22"
    ),
    text!(
        "a bin that is there twice",
        "cuda+binning:bins=4KiB/4KiB",
        "invalid argument in `cuda+binning:bins=4KiB/4KiB`: there are two bins of 4096 bytes; leave one out"
    ),
    text!(
        "a limit that is not given",
        "cuda+limiting",
        "invalid stack in `cuda+limiting`: `limiting` needs a limit; write for example \
         `limiting:limit=8GiB` or `limit=50%`"
    ),
    text!(
        "a fallback to nothing",
        "cuda+fallback",
        "invalid stack in `cuda+fallback`: `fallback` needs another stack in parentheses; write for example \
         `fallback:to=(managed)`"
    ),
    text!(
        "a fallback without parentheses",
        "cuda+fallback:to=managed",
        "invalid stack in `cuda+fallback:to=managed`: `to=managed` of `fallback` is not a stack in \
         parentheses; write for example `to=(cuda+pool)`"
    ),
    text!(
        "headroom that is not given",
        "sam_headroom",
        "invalid stack in `sam_headroom`: `sam_headroom` needs the bytes to leave free; write for example \
         headroom=1GiB"
    ),
    text!(
        "a log with columns that there are not",
        "cuda+logging:file=/dev/null,columns=all",
        "invalid stack in `cuda+logging:file=/dev/null,columns=all`: `columns=all` of `logging`: \
         write rmm or extended"
    ),
    text!(
        "a log that is flushed never",
        "cuda+logging:file=/dev/null,flush=never",
        "invalid stack in `cuda+logging:file=/dev/null,flush=never`: `flush=never` of `logging`: \
         write row, buffered or async"
    ),
    text!(
        "a log in a folder that cannot be made",
        "cuda+logging:file=/dev/null/log.csv",
        "input/output error in `cuda+logging:file=/dev/null/log.csv`: the allocation log cannot be \
         written to `/dev/null/log.csv`; choose another file: Not a directory (os error 20)"
    ),
    text!(
        "backtraces perhaps",
        "cuda+tracking:stacks=some",
        "invalid stack in `cuda+tracking:stacks=some`: `stacks=some` of `tracking`: write \
         on or off"
    ),
    text!(
        "an alignment that is no power of two",
        "cuda+aligned:alignment=3KiB",
        "invalid argument in `cuda+aligned:alignment=3KiB`: alignment 3072 is not a power of two; use 256, \
         512, 1024, …"
    ),
    text!(
        "a request that waits for a day",
        "cuda+retry:timeout=24h",
        "invalid stack in `cuda+retry:timeout=24h`: `timeout=24h` of `retry`: `24h` is \
         not a time; write for example 100ms, 2s or 50us"
    ),
    text!(
        "a time without a unit",
        "cuda+retry:timeout=5",
        "invalid stack in `cuda+retry:timeout=5`: `timeout=5` of `retry`: `5` is not a \
         time; write for example 100ms, 2s or 50us"
    ),
    text!(
        "handles of pools that there are not",
        "cuda_async:handles=pipe",
        "invalid stack in `cuda_async:handles=pipe`: `handles=pipe` of `cuda_async`: `pipe` is not a kind of \
         handle; write none, fd, fabric or fd/fabric"
    ),
    text!(
        "a pool of the driver that is neither",
        "cuda_async_view:pool=mine",
        "invalid stack in `cuda_async_view:pool=mine`: `pool=mine` of `cuda_async_view`: write default or \
         current; for any other pool, build the resource from the pool's handle"
    ),
    text!(
        "a decompression engine perhaps",
        "cuda_async:hw_decompress=some",
        "invalid stack in `cuda_async:hw_decompress=some`: `hw_decompress=some` of `cuda_async`: \
         write auto, on or off"
    ),
];

fn cuda_on_peer(bench: &Bench) -> CudaMemoryResource {
    CudaMemoryResource::new(bench.peer.clone())
}

pub(crate) const REGISTRY: &[Program] = &[
    program(
        "a default resource of another device",
        |bench| error(set_per_device_resource(bench.device.device(), cuda_on_peer(bench).into_any())),
        "invalid argument: `cuda` allocates on PEER and cannot be the default of DEVICE; build it on that \
         device",
    ),
    program(
        "the default resource of a device that is gone",
        |_| error(get_per_device_resource(DeviceId::sim(1_000_000))),
        "no device (sim:1000000): this process has no such simulated device; a simulated device lives only \
         until its last handle is dropped, so keep the object that opened it",
    ),
    program(
        "a bin on another device",
        |bench| {
            let layer = BinningLayer::new().add_bin_with(4096, cuda_on_peer(bench).into_any());
            error(CudaMemoryResource::new(bench.driver()).layer(layer))
        },
        "invalid argument: the bin of 4096 bytes allocates on PEER, but upstream on DEVICE; use resources of \
         one device",
    ),
    program(
        "a device that there is not",
        |_| error("gpu:0".parse::<DeviceSpec>()),
        "invalid argument: `gpu:0` is not a device: the kind before the colon must be `cuda`, `sim` or \
         `own`; write cuda:0, sim:h200, sim:h100, sim:a100, a size such as sim:8GiB, sim:FILE.toml with a \
         profile, or own:0 for the program's own driver",
    ),
    program(
        "a simulated device of an unknown kind",
        |_| error("sim:h300".parse::<DeviceSpec>()),
        "invalid argument: `sim:h300` is not a device: no simulated device has that name or size; \
         write cuda:0, sim:h200, sim:h100, sim:a100, a size such as sim:8GiB, sim:FILE.toml with a profile, \
         or own:0 for the program's own driver",
    ),
    program(
        "a profile that is not there",
        |_| error("sim:no-such-profile.toml".parse::<DeviceSpec>().and_then(|spec| spec.profile())),
        "invalid argument: the profile no-such-profile.toml cannot be read: No such file or directory (os \
         error 2); check the path",
    ),
];
