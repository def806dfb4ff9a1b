//! Lower bounds: the least height of any placement of a problem.

use std::time::Instant;

use crate::instance::Instance;
use crate::{Problem, cuts};

/// A lower bound on the height of every placement of a problem.
///
/// ```
/// use millpond_planning::{Block, Problem, bounds};
///
/// let block = |birth, death, size| Block { birth, death, size, stream: 0 };
/// let problem = Problem::new(vec![block(0, 4, 100), block(1, 2, 300), block(3, 5, 200)], 1)?;
/// let bound = bounds(&problem);
/// assert_eq!((bound.bytes, bound.host_order, bound.largest), (400, 400, 300));
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// The lower bound in bytes: no placement of the problem has a smaller height.
    pub bytes: u64,
    /// The largest total size of the blocks that are live at one position, in bytes. Streams make no
    /// difference to it.
    pub host_order: u64,
    /// The size of the largest block in bytes.
    pub largest: u64,
}

impl Bounds {
    /// Returns the size of the largest block divided by the bound; 0 if there are no blocks. If the result is
    /// near 0, any method reaches the bound. Problems with a result above about 0.2 are hard.
    #[must_use]
    pub fn hardness(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.largest as f64 / self.bytes as f64 }
    }
}

/// Returns the lower bounds of a problem. Sizes are rounded up to the alignment.
///
/// For a problem [in host order](Problem::new), the bound is the largest total size of the blocks that are
/// live at one position.
///
/// For a [stream-safe](Problem::stream_safe) problem, choose one position in each stream. The positions must
/// be concurrent: no order leads from a later position of one stream to an earlier position of another
/// stream. Blocks that are live at concurrent positions need different addresses. The bound is the largest
/// total size of such blocks. If there are no orders, it is the sum of the streams' own peaks.
///
/// [`bounds_until`] has a time limit.
#[must_use]
pub fn bounds(problem: &Problem) -> Bounds {
    within(problem, &|| false)
}

/// Does the same as [`bounds`], but ends the search at `end`, and returns the best bounds found so far. They
/// are valid bounds; more time may give higher ones. The bounds in host order are always found. So are the
/// bounds of a problem without orders.
///
/// ```
/// use std::time::Instant;
/// use millpond_planning::{Block, Problem, bounds_until};
///
/// let blocks = vec![Block { birth: 0, death: 1, size: 64, stream: 7 }];
/// let problem = Problem::stream_safe(blocks, 1, Vec::new())?;
/// assert_eq!(bounds_until(&problem, Instant::now()).host_order, 64);
/// # Ok::<(), millpond_planning::ProblemError>(())
/// ```
#[must_use]
pub fn bounds_until(problem: &Problem, end: Instant) -> Bounds {
    within(problem, &|| Instant::now() >= end)
}

pub(crate) fn within(problem: &Problem, is_late: &dyn Fn() -> bool) -> Bounds {
    let all = Instance::one_lane(problem, 0..problem.blocks().len() as u32);
    let host_order = all.load() * problem.unit();
    let largest = all.size.iter().max().copied().unwrap_or(0) * problem.unit();
    let bytes = match problem.orders() {
        None => host_order,
        Some(_) => host_order.max(cuts::heaviest(problem, is_late) * problem.unit()),
    };
    Bounds { bytes, host_order, largest }
}
