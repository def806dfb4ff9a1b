//! What a scope believes about a block, in the words of the model.

use millpond_core::{DevicePtr, StreamId};

use super::{Memory, Side};
use crate::capture_scopes::parked::Wait;
use crate::stream_order::ANY_STREAM;

impl Memory {
    /// Returns the belief about the block that fills the span at this address. `name` numbers the sides of
    /// streams.
    pub(in crate::capture_scopes) fn belief(
        &self,
        ptr: DevicePtr,
        name: impl Fn(StreamId, Side) -> String,
    ) -> String {
        if self.blocks.contains_key(&ptr) {
            return "live".to_owned();
        }
        let Some(span) = self.heap.regions().iter().find(|span| span.base == ptr.address()) else {
            return "upstream".to_owned();
        };
        let mut parked = self.parking.all();
        if let Some((block, waits)) = parked.find(|it| self.heap.chunk(it.0.chunk).addr == ptr.address()) {
            let goes =
                block.capture.map_or("all".to_owned(), |(id, number)| name(id, Side::Captured(number)));
            let mut waits: Vec<String> = waits.iter().map(|wait| wait_text(wait, &name)).collect();
            waits.sort();
            return [vec!["parked".to_owned(), goes], waits].concat().join(":");
        }
        let chunk = self.heap.region_chunks(span).next().expect("a span has a chunk");
        match chunk.owner() {
            ANY_STREAM => "unowned".to_owned(),
            _ if chunk.is_in_use() => "withheld".to_owned(),
            owner => {
                let (id, side) = self.places[owner as usize - 1].key.expect("an owner has a place");
                format!("owned:{}", name(id, side))
            }
        }
    }
}

fn wait_text(wait: &Wait, name: impl Fn(StreamId, Side) -> String) -> String {
    match wait {
        Wait::Close(stream) => format!("close{}", name(stream.id, Side::Ordinary)),
        Wait::Fence(_) => "fence".to_owned(),
        Wait::Device => "device".to_owned(),
    }
}
