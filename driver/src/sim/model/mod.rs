//! The parts of a simulated device: data and rules, without the driver's calls.

pub(crate) mod access;
pub(crate) mod address;
pub(crate) mod answer;
pub(crate) mod capture;
pub(crate) mod capture_rules;
pub(crate) mod clock;
pub(crate) mod fault;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod oracle;
pub(crate) mod order;
pub(crate) mod pages;
pub(crate) mod pieces;
pub(crate) mod pools;
pub(crate) mod rng;
pub(crate) mod runs;
pub(crate) mod space;
pub(crate) mod streams;
pub(crate) mod violation;
pub(crate) mod vmm;
pub(crate) mod work;
