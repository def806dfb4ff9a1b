//! Measures plain, managed and pinned memory. It allocates rows of blocks of one size. All blocks of a row
//! are allocated first, and then freed in the same order.

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult, HostFlags, HostPtr};
use millpond_driver::sim::{Curve, PlainCosts, SizeCosts};

use super::samples::Samples;
use super::session::Session;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The most blocks in a row, and the fewest samples of each size.
const ROW: u64 = 24;
const SAMPLES: u64 = 36;

/// The number of small blocks in a row. There are many, so that the cost of their pages is negligible.
const SMALL_ROW: u64 = 2000;

pub(super) fn plain(session: &mut Session<'_>) -> DriverResult<()> {
    let (mut small_alloc, mut small_free) = (Samples::default(), Samples::default());
    for bytes in [256, 4 * KIB] {
        plain_row(session, bytes, SMALL_ROW, &mut small_alloc, &mut small_free)?;
    }
    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
    let budget = session.budget;
    for bytes in (1..=11).map(|power| MIB << power).filter(|bytes| *bytes <= budget) {
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        let row = session.blocks(bytes, ROW);
        for _ in 0..SAMPLES.div_ceil(row) {
            plain_row(session, bytes, row, &mut alloc, &mut free)?;
        }
        allocs.push((bytes, alloc));
        frees.push((bytes, free));
    }
    let mut costs = |name: &str, small: &Samples, large: &[_]| {
        session.comment(&format!("{name}.in_page_ns"), None, small.describe());
        // A block of up to one page costs as much as a small block and its page together.
        let in_page_ns = small.median();
        let points = session.points(name, large);
        let page = |bytes, ns: u64| if bytes <= 2 * MIB { ns.saturating_sub(in_page_ns) } else { ns };
        let points = points.into_iter().map(|(bytes, ns)| (bytes, page(bytes, ns)));
        Some(PlainCosts::new(in_page_ns, Curve::new(points.collect()).ok()?))
    };
    let (alloc, free) = (costs("mem_alloc", &small_alloc, &allocs), costs("mem_free", &small_free, &frees));
    (session.costs.mem_alloc, session.costs.mem_free) = (alloc, free);
    Ok(())
}

fn plain_row(
    session: &mut Session<'_>,
    bytes: u64,
    row: u64,
    alloc: &mut Samples,
    free: &mut Samples,
) -> DriverResult<()> {
    device_row(session, bytes, row, alloc, free, |driver, bytes| driver.mem_alloc(bytes))
}

/// Measures one row. Frees all blocks, even after an error.
fn device_row(
    session: &mut Session<'_>,
    bytes: u64,
    row: u64,
    alloc: &mut Samples,
    free: &mut Samples,
    allocate: impl Fn(&dyn Driver, u64) -> DriverResult<DevicePtr>,
) -> DriverResult<()> {
    let mut blocks = Vec::new();
    let mut answer = Ok(());
    // Small blocks are consecutive if the driver serves them at all.
    let is_cold = bytes >= 2 * MIB;
    for _ in 0..row {
        match session.timed.call_after(is_cold, alloc, |driver| allocate(driver, bytes)) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                answer = Err(error);
                break;
            }
        }
    }
    for block in blocks {
        // SAFETY: the block is from this driver, and nothing uses it.
        let freed = session.timed.call_after(is_cold, free, |driver| unsafe { driver.mem_free(block) });
        answer = answer.and(freed);
    }
    answer
}

pub(super) fn host(session: &mut Session<'_>) -> DriverResult<()> {
    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
    for bytes in [64 * KIB, MIB, 2 * MIB, 16 * MIB, 64 * MIB, 256 * MIB] {
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        let row = session.blocks(4 * bytes, ROW); // little memory on any device
        device_row(session, bytes, row, &mut alloc, &mut free, |driver, bytes| {
            driver.mem_alloc_managed(bytes)
        })?;
        allocs.push((bytes, alloc));
        frees.push((bytes, free));
    }
    let by_size = SizeCosts::new;
    session.costs.mem_alloc_managed = session.curve("mem_alloc_managed", &allocs, 0).map(by_size);
    session.costs.mem_free_managed = session.curve("mem_free_managed", &frees, 0).map(by_size);

    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
    for (bytes, row) in [(64 * KIB, 16), (MIB, 16), (16 * MIB, 8), (64 * MIB, 4)] {
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        pinned_row(session, bytes, row, &mut alloc, &mut free)?;
        allocs.push((bytes, alloc));
        frees.push((bytes, free));
    }
    session.costs.mem_host_alloc = session.curve("mem_host_alloc", &allocs, 0).map(by_size);
    session.costs.mem_free_host = session.curve("mem_free_host", &frees, 0).map(by_size);
    Ok(())
}

fn pinned_row(
    session: &mut Session<'_>,
    bytes: u64,
    row: u64,
    alloc: &mut Samples,
    free: &mut Samples,
) -> DriverResult<()> {
    let allocated =
        |_| session.timed.call_cold(alloc, |driver| driver.mem_host_alloc(bytes, HostFlags::default()));
    let blocks: Vec<DriverResult<HostPtr>> = (0..row).map(allocated).collect();
    let mut answer = Ok(());
    for block in blocks {
        let freed = block.and_then(|block| {
            // SAFETY: the block is from this driver, and nothing uses it.
            session.timed.call_cold(free, |driver| unsafe { driver.mem_free_host(block) })
        });
        answer = answer.and(freed);
    }
    answer
}
