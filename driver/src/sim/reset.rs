//! A reset of the context (`cuDevicePrimaryCtxReset`), as on an H200: docs/lab/gpu.md.
//!
//! Plain, managed and pinned memory, open IPC handles, streams and events are gone at once. The addresses of
//! plain memory and all handles are reused. Physical memory, its mappings and reservations stay, and so do
//! the pools' contents. Pools created before the reset hand out no more memory.

use std::sync::Arc;

use super::device::SimDevice;
use super::model::oracle::Oracle;
use super::model::space::{Mapping, Purpose};
use super::state::State;

impl State {
    /// Ends the context and everything that ends with it.
    fn reset_context(&mut self) {
        self.begin_step();
        self.work.finish_all(&mut self.effects);
        self.order.host_learns_all();
        for slot in self.names.clear() {
            self.order.close(slot);
        }
        self.oracle = Oracle::default();
        self.openings.clear();
        self.captures.clear();
        self.pools.end_of_context();
        for (start, mapping) in self.space.take_mappings_of_context() {
            self.end_with_context(start, &mapping);
        }
        self.peers_enabled.clear();
        self.is_context_active = false;
        self.generation += 1;
        self.note(self.generation);
    }

    fn end_with_context(&mut self, start: u64, mapping: &Mapping) {
        let bytes = mapping.end - start;
        let range = mapping.physical..mapping.physical + bytes;
        match mapping.purpose {
            Purpose::Plain => {
                self.effects.contents.forget(range);
                self.space.free_plain(start, bytes);
            }
            // The simulator keeps the real memory, so the program's old pointers never lead to other data.
            Purpose::Managed | Purpose::Host { registered: false } => self.space.remove_live(bytes),
            Purpose::Ipc | Purpose::Imported(_) => self.space.unreserve(start, bytes),
            Purpose::Host { .. } | Purpose::Pageable | Purpose::Pool(_) | Purpose::Virtual(_) => {}
        }
    }
}

impl SimDevice {
    /// Resets the device's context, as any library may do with `cuDevicePrimaryCtxReset`. Every later call of
    /// this driver fails with [`CONTEXT_IS_DESTROYED`](millpond_core::DriverError::CONTEXT_IS_DESTROYED),
    /// except the calls that [`Driver::was_reset`](millpond_core::Driver::was_reset) lists.
    /// [`open_again`](Self::open_again) and [`open`](crate::open) return the driver of the new context.
    ///
    /// The reset destroys plain, managed and pinned memory, streams and events. Physical memory, its mappings
    /// and its addresses stay until the program frees them.
    pub fn reset_context(&self) {
        self.lock().reset_context();
    }

    /// Returns the driver of the device's present context. If the context was not reset, this is the same
    /// driver.
    pub fn open_again(&self) -> Arc<Self> {
        self.shared.open()
    }
}
