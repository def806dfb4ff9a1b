//! Names the opcodes of pickles, and describes what refused opcodes ask for.

use crate::import::bytes::Bytes;

/// The most characters that are shown for the name of a module or a member.
const SHOWN: usize = 80;

/// The opcodes that this reader runs or that a refusal names, with Python's names.
const NAMES: &[(u8, &str)] = &[
    (b'(', "MARK"),
    (b')', "EMPTY_TUPLE"),
    (b'.', "STOP"),
    (b'0', "POP"),
    (b'1', "POP_MARK"),
    (b'2', "DUP"),
    (b'B', "BINBYTES"),
    (b'C', "SHORT_BINBYTES"),
    (b'F', "FLOAT"),
    (b'G', "BINFLOAT"),
    (b'I', "INT"),
    (b'J', "BININT"),
    (b'K', "BININT1"),
    (b'L', "LONG"),
    (b'M', "BININT2"),
    (b'N', "NONE"),
    (b'P', "PERSID"),
    (b'Q', "BINPERSID"),
    (b'R', "REDUCE"),
    (b'S', "STRING"),
    (b'T', "BINSTRING"),
    (b'U', "SHORT_BINSTRING"),
    (b'V', "UNICODE"),
    (b'X', "BINUNICODE"),
    (b']', "EMPTY_LIST"),
    (b'a', "APPEND"),
    (b'b', "BUILD"),
    (b'c', "GLOBAL"),
    (b'd', "DICT"),
    (b'e', "APPENDS"),
    (b'g', "GET"),
    (b'h', "BINGET"),
    (b'i', "INST"),
    (b'j', "LONG_BINGET"),
    (b'l', "LIST"),
    (b'o', "OBJ"),
    (b'p', "PUT"),
    (b'q', "BINPUT"),
    (b'r', "LONG_BINPUT"),
    (b's', "SETITEM"),
    (b't', "TUPLE"),
    (b'u', "SETITEMS"),
    (b'}', "EMPTY_DICT"),
    (0x80, "PROTO"),
    (0x81, "NEWOBJ"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (0x85, "TUPLE1"),
    (0x86, "TUPLE2"),
    (0x87, "TUPLE3"),
    (0x88, "NEWTRUE"),
    (0x89, "NEWFALSE"),
    (0x8a, "LONG1"),
    (0x8b, "LONG4"),
    (0x8c, "SHORT_BINUNICODE"),
    (0x8d, "BINUNICODE8"),
    (0x8e, "BINBYTES8"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
    (0x92, "NEWOBJ_EX"),
    (0x93, "STACK_GLOBAL"),
    (0x94, "MEMOIZE"),
    (0x95, "FRAME"),
    (0x96, "BYTEARRAY8"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
];

/// Returns the name of an opcode.
pub(super) fn name(opcode: u8) -> String {
    let known = NAMES.iter().find(|(code, _)| *code == opcode);
    known.map_or_else(|| format!("{opcode:#04x}"), |(_, name)| (*name).to_owned())
}

/// If an opcode asks for more than plain data, returns a description of its request.
pub(super) fn wish(opcode: u8) -> Option<String> {
    let wish = match opcode {
        b'R' => "to call a function",
        b'b' => "to set up an object by its own code",
        b'o' | 0x81 | 0x92 => "to make an object of a class",
        b'P' | b'Q' => "for an object that is stored outside of it, as the tensors of a checkpoint are",
        0x82..=0x84 => "for an object of a registered extension",
        0x93 => "to import something without a name",
        0x97 | 0x98 => "for a buffer that is not in it",
        _ => return None,
    };
    Some(wish.to_owned())
}

/// Reads the two lines after an opcode that imports: the name of a module, and a name in the module.
pub(super) fn global(input: &mut Bytes<'_>) -> Option<String> {
    let mut line = || {
        let mut text = Vec::new();
        while let Some(byte) = input.next().ok()? {
            if byte == b'\n' {
                return Some(shown(&String::from_utf8_lossy(&text)));
            }
            // A longer name is not shown.
            if text.len() <= 4 * SHOWN {
                text.push(byte);
            }
        }
        None
    };
    Some(format!("{}.{}", line()?, line()?))
}

/// Returns a name from a file in a form to display: short, and without characters that a terminal would obey.
pub(super) fn shown(name: &str) -> String {
    let mut short: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    short
}
