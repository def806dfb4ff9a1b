//! Describes stacks as text, reads such text, and builds stacks from it.
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
//! A word needs quotes if it contains a character that the grammar uses: `logging:file="a,b.csv"`. The path
//! of a file may contain names in braces. `{pid}` stands for the number of the process, `{rank}` for its
//! number in a job, and `{device}` for the number of the device. `{xff}` stands for the byte with this
//! hexadecimal number. [`FilePath`] describes these names.
//!
//! If a layer has further upstreams, write them as stacks in parentheses. In
//! `cuda+pool+binning:bins=64KiB/1MiB(cuda+pool:max=1GiB)`, the stack in parentheses is a second pool, which
//! serves requests up to 1 MiB. In a shell, put such a text into single quotes.
//!
//! [`Display`](std::fmt::Display) of a resource prints the same kind of text, for example
//! `cuda+pool:initial=1GiB,max=50%+statistics`. The environment variable `MILLPOND_STACK`
//! ([`StackSpec::from_env`]) and the options of the replay binary also contain such texts.
//!
//! A [`StackSpec`] is a parsed text. A [`LayerTable`] defines how the layer with each name is built. Each
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
