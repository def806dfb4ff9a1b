//! Pages: physical memory in handles, mapped in the primary mapping and, if blocks need it, in aliases.
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
//! spans of small blocks. In the primary mapping free bytes join across the borders of handles. It is an
//! ordinary [`Heap`], which serves nearly all requests. If no free extent there is large enough, the pool
//! stitches a block in an **alias mapping**: the free end of one handle, whole free handles, new handles, and
//! the free start of one, mapped a second time one after the other. A block in an alias owns bytes of the
//! primary mapping, in pieces, and is freed piece by piece. The alias stays, and serves again without a
//! driver call if its handles are free.
//!
//! So memory never moves, and nothing is unmapped while it is in use. But some free bytes of partly used
//! handles cannot be handed out. The sizes of handles decide how many bytes these are, and how many driver
//! calls the pool makes: [`Policy`].
//!
//! This module makes no driver call while the pool's lock is held. A [`Plan`] or a [`Release`] holds the
//! calls: it is planned under the lock, run without it, and committed or aborted under it.
//!
//! | file | contents |
//! |---|---|
//! | `find` | finds free bytes in the primary mapping and in aliases |
//! | `free_ends`, `aliases` | free ends of handles; runs of them in alias mappings |
//! | `stitch`, `plan` | choose the pieces of a block and the new memory; commit and abort |
//! | `stitched` | the blocks in aliases, and the moves of segments that watchers hear of |
//! | `release` | returns memory to the driver |
//! | `driver_calls` | the driver calls of plans and releases |
//! | `access` | how physical memory is created, and which devices have access to it |
//! | `handles`, `address_space` | tables: the handle at an address, free addresses |
//! | `policy` | how many driver calls the pool may spend, and how large handles are |

mod access;
mod address_space;
mod admission;
mod aliases;
mod collect_ends;
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
mod stitched;
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
