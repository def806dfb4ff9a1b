//! The driver's calls, as changes to a simulated device's state.

mod capture;
mod copies;
mod device;
mod events;
mod ipc;
mod oracle;
mod plain;
mod pool_share;
mod pools;
mod share;
mod streams;
mod vmm;
