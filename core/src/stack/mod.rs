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
//! A word needs quotes if it would otherwise be read as something else: `logging:file="a,b.csv"`. In the path
//! of a file, `{pid}`, `{rank}` and `{device}` stand for the process, its number in a job, and the device;
//! `{xff}` stands for a byte that is not text ([`FilePath`]). A layer with further upstreams names them in
//! parentheses: `cuda+pool+binning:bins=64KiB/1MiB(cuda+pool:max=1GiB)` serves requests up to 1 MiB from a
//! second pool. In a shell, put such a text into single quotes.
//!
//! [`Display`](std::fmt::Display) of a resource prints the same text. The environment variable
//! `MILLPOND_STACK` holds it ([`StackSpec::from_env`]), and the replay binary takes it:
//! `cuda+pool:initial=1GiB,max=50%+statistics`.
//!
//! A [`StackSpec`] is the text as data. To build it, a [`LayerTable`] defines each name. Each crate of
//! resources or adaptors has such a table, and you can add your own.

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
