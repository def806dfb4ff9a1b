//! Shows how NVIDIA's compute-sanitizer finds errors in the blocks of a pool. The pool tells the tool which
//! memory is in use; the program does nothing for this. It needs a GPU:
//!
//! ```sh
//! cargo build -p millpond-tests --example memory_checker
//! compute-sanitizer target/debug/examples/memory_checker overflow
//! ```
//!
//! The first argument names the mode: `clean`, or one of the errors `overflow`, `after-free`,
//! `after-free-busy` and `beyond`. The second one is the stack (default `cuda+pool`), the third one the size
//! of the block with the error.

use std::ffi::c_void;
use std::sync::Arc;

use millpond::driver::cuda::{CudaDriver, Function};
use millpond::driver::{CaptureMode, StreamFlags};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Waits for a number of clock cycles, and then writes one byte.
const PTX: &str = "
.version 6.0
.target sm_52
.address_size 64
.visible .entry put(.param .u64 address, .param .u64 cycles)
{
    .reg .pred %again;
    .reg .b64  %address, %cycles, %start, %now;
    ld.param.u64 %address, [address];
    ld.param.u64 %cycles, [cycles];
    mov.u64      %start, %clock64;
AGAIN:
    mov.u64      %now, %clock64;
    sub.s64      %now, %now, %start;
    setp.lt.u64  %again, %now, %cycles;
    @%again bra  AGAIN;
    cvta.to.global.u64 %address, %address;
    st.global.u8 [%address], 7;
    ret;
}";

/// About a tenth of a second.
const LONG: u64 = 150_000_000;
const MIB: u64 = 1 << 20;

struct Program {
    driver: Arc<CudaDriver>,
    stack: AnyResource,
    put: Function,
}

impl Program {
    fn new(text: &str) -> Outcome<Self> {
        let driver = CudaDriver::open(0)?;
        let stack = text.parse::<StackSpec>()?.build(&millpond::layers(), &(driver.clone() as _))?;
        let put = driver.load_ptx(PTX)?.function("put")?;
        Ok(Self { driver, stack, put })
    }

    /// Writes one byte, after about this many cycles.
    fn put(&self, block: DevicePtr, at: u64, mut cycles: u64, stream: StreamRef) -> Outcome<()> {
        let mut address = block.address() + at;
        let mut args: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut cycles).cast()];
        // SAFETY: there is one argument of the right type for each parameter. Nothing depends on the contents
        // of the pool's memory.
        Ok(unsafe { self.put.launch([1; 3], [1; 3], 0, stream, &mut args) }?)
    }

    fn free(&self, block: DevicePtr, bytes: u64, stream: StreamRef) {
        // SAFETY: the program frees each block once, with its size, in the order of its stream.
        unsafe { self.stack.deallocate_bytes(block, bytes, stream) }
    }

    /// Uses blocks without an error: in stream order, in a graph, over growths and releases of memory.
    fn clean(&self) -> Outcome<()> {
        let flags = StreamFlags::NON_BLOCKING;
        let streams =
            [StreamRef::LEGACY, self.driver.stream_create(flags)?, self.driver.stream_create(flags)?];
        for round in 0..30 {
            for (index, stream) in streams.iter().enumerate() {
                for bytes in [1, 100, 256, 1000, 65_537, 3 * MIB + 5, 40 * MIB] {
                    let block = self.stack.allocate_bytes(bytes, *stream)?;
                    let is_slow = round % 10 == index;
                    self.put(block, bytes - 1, if is_slow { LONG } else { 0 }, *stream)?;
                    self.put(block, 0, 0, *stream)?;
                    // The kernels may still run.
                    self.free(block, bytes, *stream);
                }
            }
            if round % 8 == 0 {
                self.stack.trim(0)?;
            }
        }
        self.fragments()?;
        self.graph(streams[1])?;
        self.driver.synchronize()?;
        Ok(())
    }

    /// Frees every other block, and then allocates one that is larger than each of the gaps.
    fn fragments(&self) -> Outcome<()> {
        const BYTES: u64 = 8 * MIB;
        let stream = StreamRef::LEGACY;
        let blocks =
            (0..16).map(|_| self.stack.allocate_bytes(BYTES, stream)).collect::<Result<Vec<_>, _>>()?;
        for block in blocks.iter().step_by(2) {
            self.free(*block, BYTES, stream);
        }
        let large = 5 * BYTES - 3;
        let block = self.stack.allocate_bytes(large, stream)?;
        for at in (0..large).step_by(MIB as usize).chain([large - 1]) {
            self.put(block, at, 0, stream)?;
        }
        self.free(block, large, stream);
        for block in blocks.iter().skip(1).step_by(2) {
            self.put(*block, BYTES - 1, 0, stream)?;
            self.free(*block, BYTES, stream);
        }
        Ok(())
    }

    /// Launches a graph that uses two blocks. One is allocated and freed within the capture.
    fn graph(&self, stream: StreamRef) -> Outcome<()> {
        let outer = self.stack.allocate_bytes(500, stream)?;
        self.driver.begin_capture(stream, CaptureMode::Relaxed)?;
        let inner = self.stack.allocate_bytes(300, stream)?;
        self.put(outer, 499, 0, stream)?;
        self.put(inner, 299, 0, stream)?;
        self.free(inner, 300, stream);
        let graph = self.driver.end_capture(stream)?.instantiate()?;
        for _ in 0..3 {
            // SAFETY: the blocks are live, or no other request has taken their memory.
            unsafe { graph.launch(stream) }?;
        }
        self.driver.stream_synchronize(stream)?;
        self.free(outer, 500, stream);
        Ok(())
    }

    fn error(&self, mode: &str, bytes: u64) -> Outcome<()> {
        let stream = self.driver.stream_create(StreamFlags::NON_BLOCKING)?;
        let other = self.stack.allocate_bytes(bytes, stream)?;
        let block = self.stack.allocate_bytes(bytes, stream)?;
        self.put(block, bytes - 1, 0, stream)?;
        match mode {
            "overflow" => self.put(block, bytes, 0, stream)?,
            // The last byte before the next multiple of 256, which only padding can be.
            "beyond" => self.put(block, bytes.next_multiple_of(256) - 1, 0, stream)?,
            "after-free" | "after-free-busy" => {
                if mode == "after-free-busy" {
                    self.put(other, 0, LONG, stream)?;
                }
                self.free(block, bytes, stream);
                self.put(block, 0, 0, stream)?;
            }
            _ => return Err(format!("unknown mode `{mode}`; the top of the source lists the modes").into()),
        }
        self.driver.stream_synchronize(stream)?;
        self.free(other, bytes, stream);
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap_or_else(|| "clean".to_owned());
    let stack = args.next().unwrap_or_else(|| "cuda+pool".to_owned());
    let bytes = args.next().map_or(Ok(1000), |bytes| bytes.parse::<u64>())?;
    let program = Program::new(&stack)?;
    if mode == "clean" {
        program.clean()?
    } else {
        program.error(&mode, bytes)?
    }
    println!("{mode} of `{}` ended", program.stack);
    Ok(())
}
