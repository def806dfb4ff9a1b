//! Pages: physical memory in handles, mapped in the primary mapping and, where blocks need it, in aliases.
//!
//! ```text
//!  range    ┌ handle 0 ──┬ handle 1 ┬ handle 2 ──┬ 3 ┬ handle 4 ────┐   primary mappings, without gaps
//!           │ used │ free│   free   │ free│ used │ …  │ free  │ used │   best fit over all borders
//!           └──────┴─────┴──────────┴─────┴──────┴────┴───────┴──────┘
//!
//!  alias               ┌ handle 0 ──┬ handle 4 ────┬ handle 2 ─ …        the same handles again
//!                      │      │▒▒▒▒▒▒▒ a block ▒▒▒▒▒▒▒│
//! ```
//!
//! Every handle has a **primary mapping** in one of two address ranges: one for large blocks, one for the
//! spans of small blocks. In the primary mapping free bytes join over the borders of handles: an ordinary
//! [`Heap`], which serves nearly all requests. Where no free extent there is large enough, the pool stitches
//! a block in an **alias mapping**: the free end of one handle, whole free handles, new handles, and the free
//! start of one, mapped a second time behind each other. A block in an alias owns bytes of the primary
//! mapping, in pieces, and is freed piece by piece. The alias stays, and serves again without a driver call
//! while its handles are free.
//!
//! So memory never moves, and nothing is unmapped while it is in use. Only free bytes of handles that are in
//! use in part cannot be handed out. The sizes of handles decide how many bytes that are, and how many driver
//! calls the pool makes: [`Policy`].
//!
//! This module makes no driver call while the pool's lock is held. A [`Plan`] or a [`Release`] holds the
//! calls: it is planned under the lock, run without it, and committed or aborted under it again.
//!
//! | file | what it is |
//! |---|---|
//! | `find` | finds free bytes in the primary mapping and in aliases |
//! | `free_ends`, `aliases` | free ends of handles; runs of them in alias mappings |
//! | `stitch`, `plan` | which pieces make a block, how much memory is new; commit and abort |
//! | `release` | returns memory to the driver |
//! | `driver_calls` | the driver calls of plans and releases |
//! | `access` | how physical memory is made, and which devices have access to it |
//! | `handles`, `address_space` | tables: the handle at an address, free addresses |
//! | `policy` | what driver calls the pool may spend, and how large handles are |

mod access;
mod address_space;
mod admission;
mod aliases;
mod driver_calls;
mod find;
mod free_ends;
mod handles;
mod plan;
mod policy;
mod release;
#[cfg(test)]
mod replay;
mod state;
mod stitch;
mod store;
#[cfg(test)]
mod tests;
mod validate;

pub(crate) use access::{Admission, Backing};
#[cfg(unix)]
pub(crate) use admission::Part;
pub(crate) use plan::{Plan, Refused};
pub(crate) use release::Release;
pub(crate) use state::Pages;
