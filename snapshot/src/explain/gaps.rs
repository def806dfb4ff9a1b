//! The free pieces between the live blocks of a log that has addresses, but no segments.

use std::collections::BTreeMap;

use millpond_engine::text::{file_word, readable_bytes};

use super::explanation::{Diagnosis, Explained};
use super::fixes::less_fragmentation;
use crate::recording::{EventKind, Recording, Source};

/// Explains a failed request for which memory sufficed before: more bytes were live at an earlier time, but
/// no free piece was large enough. Only the addresses that earlier blocks had count as free.
pub(super) fn fragmentation(
    recording: &Recording,
    explained: &Explained,
    wanted: u64,
    evidence: &[String],
) -> Option<Diagnosis> {
    let of_pools = [Source::RMM, Source::RMM_DEBUG, Source::MILLPOND_LOG];
    if !of_pools.contains(&recording.source().format.as_str()) || recording.begins_late() {
        return None;
    }
    let failed = explained.ledger.event as usize;
    let most = recording.live_bytes().take(failed).map(|(_, bytes)| bytes).max()?;
    let piece = largest_piece(recording, failed);
    if most < explained.ledger.active_bytes.saturating_add(wanted) || piece >= wanted {
        return None;
    }
    let bytes = readable_bytes;
    let live = format!("{} were live at an earlier time, so the size alone is not the cause", bytes(most));
    let mut fixes = less_fragmentation(recording);
    fixes.push(format!(
        "find an allocator that needs less: millpond-replay tune {}",
        file_word(recording.file())
    ));
    Some(Diagnosis {
        code: "fragmentation",
        what: format!(
            "probably fragmentation: {} were live earlier, but the largest free piece among the addresses of \
             earlier blocks now has {}",
            bytes(most),
            bytes(piece)
        ),
        evidence: [evidence, &[live]].concat(),
        holders: explained.holders.clone(),
        fixes,
    })
}

/// Returns the size in bytes of the largest free piece before an event.
fn largest_piece(recording: &Recording, before: usize) -> u64 {
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for event in recording.events().take(before) {
        let end = event.address.saturating_add(event.bytes);
        match event.kind {
            EventKind::Allocate => {
                live.insert(event.address, end);
                spans.push((event.address, end));
            }
            EventKind::Free => drop(live.remove(&event.address)),
            _ => {}
        }
    }
    spans.sort_unstable();
    // The areas that blocks have covered without a gap.
    spans.dedup_by(|next, area| {
        let touches = next.0 <= area.1;
        if touches {
            area.1 = area.1.max(next.1);
        }
        touches
    });
    let mut largest = 0;
    for (start, end) in spans {
        let mut free_from = start;
        for (&block, &block_end) in live.range(start..end) {
            largest = largest.max(block.saturating_sub(free_from));
            free_from = free_from.max(block_end);
        }
        largest = largest.max(end.saturating_sub(free_from));
    }
    largest
}
