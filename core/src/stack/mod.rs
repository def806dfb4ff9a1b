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
//! A word needs quotes if it would otherwise be read as something else: `logging:file="a,b.csv"`. The path of
//! a file may hold names in braces. `{pid}` stands for the number of the process, `{rank}` for its number in
//! a job, and `{device}` for the number of the device. `{xff}` stands for the byte with this hexadecimal
//! number ([`FilePath`]).
//!
//! If a layer has further upstreams, they are stacks in parentheses. In
//! `cuda+pool+binning:bins=64KiB/1MiB(cuda+pool:max=1GiB)`, a second pool serves requests up to 1 MiB. In a
//! shell, put such a text into single quotes.
//!
//! [`Display`](std::fmt::Display) of a resource prints the same text. The environment variable
//! `MILLPOND_STACK` ([`StackSpec::from_env`]) and the options of the replay binary hold such texts, too:
//! `cuda+pool:initial=1GiB,max=50%+statistics`.
//!
//! A [`StackSpec`] is the text as data. A [`LayerTable`] defines how the layer of each name is built. Each
//! crate of resources or adaptors has a table, and you can add your own.

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
