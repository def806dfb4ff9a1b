//! The caller's mistakes, which a resource must refuse and report exactly once each.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, Layout};

use super::FailureKind;
use super::broken::{Broken, Checks, unexpected};
use super::execution::Execution;
use super::op::{Block, Mistake, Stream};
use crate::misuse_recorder;

impl Execution {
    /// Whether this mistake can be made with the block.
    pub(super) fn can_mistake(&self, block: Block, mistake: Mistake) -> bool {
        let least = if mistake == Mistake::Inside { ALLOCATION_ALIGNMENT + 1 } else { 1 };
        self.blocks.get(&block).is_some_and(|live| live.layout.bytes() >= least)
    }

    pub(super) fn misuse(&mut self, block: Block, stream: Stream, mistake: Mistake) -> Checks {
        let Some(live) = self.blocks.get(&block) else { return Ok(()) };
        let (ptr, layout) = (live.ptr, live.layout);
        let (wrong, layout) = match mistake {
            Mistake::DoubleFree => {
                self.deallocate(block, stream)?;
                (ptr, layout)
            }
            Mistake::WrongSize => {
                let larger = Layout::with_alignment(layout.bytes() + 1, layout.alignment());
                (ptr, larger.map_err(unexpected)?)
            }
            Mistake::Inside => (ptr.offset(ALLOCATION_ALIGNMENT), layout),
        };
        let handed_out = self.resource.shadow(|shadow| shadow.is_live(wrong));
        if mistake == Mistake::DoubleFree && handed_out {
            return Ok(()); // a guest may own the block by now
        }
        let handle = self.stream(stream)?;
        let resource = self.resource.inner();
        // SAFETY: none, on purpose. The resource declares that it refuses this, so no block changes.
        let ((), reports) = misuse_recorder::record(|| unsafe { resource.deallocate(wrong, layout, handle) });
        self.summary.misuses += 1;
        match reports.len() {
            1 => Ok(()),
            reports => Err(Broken::new(
                FailureKind::Unrefused,
                format!("{mistake:?} of {wrong} ({} bytes) is reported {reports} times", layout.bytes()),
            )),
        }
    }
}
