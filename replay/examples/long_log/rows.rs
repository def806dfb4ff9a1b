//! Writes long seeded logs whose thread changes in every row.

use std::io::{self, Write};

/// Blocks that are live at one time, over all threads.
pub(crate) const LIVE: u64 = 1024;

/// A live block.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
}

/// Writes a log of `rows` rows. The thread changes in every row, and each thread has its own stream. First
/// all threads allocate. Then each alternately frees its oldest block and allocates another. Most blocks have
/// less than 60 KB; one in 64 has up to 4 MiB.
///
/// # Errors
/// Writing fails.
pub(crate) fn write(out: &mut impl Write, rows: u64, threads: u64) -> io::Result<()> {
    out.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
    let a_thread = LIVE / threads;
    let mut live = vec![std::collections::VecDeque::new(); threads as usize];
    let (mut random, mut next) = (7_u64, 0_u64);
    for row in 0..rows {
        let (thread, turn) = (row % threads, row / threads);
        let (number, stream) = (400 + thread, 0x55e8_c000 + thread * 0x100);
        let blocks = &mut live[thread as usize];
        if turn < a_thread || turn % 2 == 0 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = random >> 33;
            let bytes = 256 + if drawn % 64 == 0 { (drawn >> 6) % (4 << 20) } else { drawn % 60_000 };
            let address = 0x7f00_0000_0000 + next % (4 * LIVE) * (8 << 20);
            next += 1;
            blocks.push_back(Block { address, bytes });
            writeln!(out, "{number},05:01:18.946606,allocate,{address:#x},{bytes},{stream:#x}")?;
        } else if let Some(Block { address, bytes }) = blocks.pop_front() {
            writeln!(out, "{number},05:01:18.946609,free,{address:#x},{bytes},{stream:#x}")?;
        }
    }
    out.flush()
}
