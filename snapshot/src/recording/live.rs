//! The live bytes after each event.

use foldhash::HashMap;

use super::{Event, EventKind, Recording};

impl Recording {
    /// Returns each event with the requested bytes that are live after it.
    pub(crate) fn live_bytes(&self) -> impl Iterator<Item = (&Event, u64)> {
        let mut blocks: HashMap<u64, u64> = HashMap::default();
        let mut live = 0_u64;
        self.events().map(move |event| {
            match event.kind {
                EventKind::Allocate => {
                    let older = blocks.insert(event.address, event.bytes).unwrap_or(0);
                    live = live.saturating_sub(older).saturating_add(event.bytes);
                }
                EventKind::Free => live = live.saturating_sub(blocks.remove(&event.address).unwrap_or(0)),
                _ => {}
            }
            (event, live)
        })
    }
}
