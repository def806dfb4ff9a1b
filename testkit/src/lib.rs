//! Tools for testing memory resources: millpond's resources, and your own.
//!
//! | item | purpose |
//! |---|---|
//! | [`conformance`] | a suite for all resources and adaptors, simulated or on a GPU, and one for drivers |
//! | [`program`] | seeded programs over many streams, checked by oracles and shrunk after a failure |
//! | [`race`] | many threads over one resource, with too little memory |
//! | [`faults`] | runs a scenario once for each driver call in it, and lets this call fail |
//! | [`hooked`] | a driver that runs a closure of the test in the middle of a call |
//! | [`reentrancy`] | finds layers that hang when their upstream, the driver or a hook calls the stack |
//! | [`guest`] | code that a resource calls in the middle of a call, and that uses the resource again |
//! | [`watch`] | a layer that records which layer is called, and a watchdog that names a hanging layer |
//! | [`random_stacks`] | random stacks of all layers, for programs and races |
//! | [`mock`] | a scripted resource to put below an adaptor, so that its test reads as a script |
//! | [`Checked`] | a wrapper that reports all blocks to the simulated device and the shadow |
//! | [`Several`] | several resources of one device behind one, so that they compete for the device's memory |
//! | [`shadow`] | the plain model of an allocator, for comparison |
//! | [`stacks`] | the list of stacks for tests of all resources and adaptors |
//! | [`layer_docs`] | the options of layers as documentation pages, made from their entries |
//! | [`events`] | hears millpond's `tracing` events in a test |
//! | [`own_process`] | runs a test in its own process |
//! | [`size`] | how much a test does: enough in a run of all tests, and more in a nightly run |
//! | [`misuse_recorder`] | records the refused calls of the current thread |
//! | [`captured`] | seeded programs that capture graphs in scopes, with other work before, during and after |
//! | [`canary`] | a pool, scopes, and a layer that submits work, each with a chosen mistake for the oracles |
//!
//! All tools are deterministic: they use no random numbers without a seed, and a failure prints the seed.

pub mod canary;
pub mod captured;
mod checked;
pub mod conformance;
pub mod events;
pub mod faults;
pub mod guest;
pub mod hooked;
pub mod layer_docs;
pub mod misuse_recorder;
pub mod mock;
pub mod own_process;
pub mod program;
pub mod race;
pub mod random_stacks;
pub mod reentrancy;
mod rng;
mod several;
pub mod shadow;
pub mod size;
pub mod stacks;
mod statistics_check;
pub mod watch;

pub use checked::Checked;
pub use rng::Rng;
pub use several::Several;

/// A panic's message.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
