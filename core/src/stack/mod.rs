//! Stacks as text.
//!
//! ```text
//! stack  = layer *( "+" layer )                base first, outermost last
//! layer  = name [ ":" [ param *( "," param ) ] ]
//! param  = key "=" value
//! value  = 1*( text / "(" stack ")" )          a stack in parentheses is a further upstream
//! name   = word                                plain: without + : , = ( ) "
//! key    = word                                plain: without + , = ( ) "
//! text   = word                                plain: without + , ( ) "
//! word   = plain / quoted                      white space around a word does not count
//! quoted = <"> *( any character but <"> / <""> ) <">        <""> is one <">
//! ```
//!
//! Quotes are needed if a plain word would be read as something else: `logging:file="a,b.csv"`. In the path
//! of a file, `{pid}`, `{rank}` and `{device}` stand for the process, its number in a job, and the device,
//! and `{xff}` for a byte that is no text ([`FilePath`]). A layer
//! that takes memory from more than the layer below it names the others in parentheses:
//! `cuda+pool+binning:bins=64KiB/1MiB(cuda+pool:max=1GiB)` serves requests up to 1 MiB from a pool of their
//! own. In a shell, such a text goes into single quotes.
//!
//! The same text is what [`Display`](std::fmt::Display) of a resource prints, what the environment variable
//! `MILLPOND_STACK` holds ([`StackSpec::from_env`]), and what the replay binary takes:
//! `cuda+pool:initial=1GiB,max=50%+statistics`.
//!
//! The text alone is a [`StackSpec`]. To build it, a [`LayerTable`] says what each name means; each
//! crate of resources or adaptors has one, and so may a user's.

mod build;
mod building;
mod path;
mod place;
mod spec;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use build::STACK_VARIABLE;
pub use building::{AtEnd, Building};
pub use path::{FilePath, RANK_VARIABLES};
pub use place::FilePlace;
pub use spec::{LayerSpec, Piece, StackSpec, Value};
pub use table::{BaseBuilder, LayerBuilder, LayerEntry, LayerKind, LayerTable, Params, ReadStack};
