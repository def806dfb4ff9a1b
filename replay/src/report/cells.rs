//! Tables and their cells.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_engine::text::bytes_among;

use super::ran::Ran;
use crate::compare::StackFigures;

/// A column: its heading, and its cells.
pub(super) type Column = (&'static str, Cell);

/// Makes the cells of a column.
#[derive(Clone, Copy)]
pub(super) enum Cell {
    /// A text.
    Text(fn(&StackFigures) -> String),
    /// A size. Sizes that differ have different texts.
    Bytes(fn(&StackFigures) -> u64),
}

/// Returns a row for each stack: its name, and the cells of the columns.
pub(super) fn rows(columns: &[Column], ran: &Ran<'_>) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = ran.iter().map(|(stack, _)| vec![stack.spec.clone()]).collect();
    for (_, cell) in columns {
        let all: Vec<u64> = match cell {
            Cell::Text(_) => Vec::new(),
            Cell::Bytes(bytes) => ran.iter().map(|(_, figures)| bytes(figures)).collect(),
        };
        for (row, (_, figures)) in rows.iter_mut().zip(ran) {
            row.push(match cell {
                Cell::Text(text) => text(figures),
                Cell::Bytes(bytes) => bytes_among(bytes(figures), &all),
            });
        }
    }
    rows
}

/// Returns a table whose first column is text.
pub(super) fn table_of(header: Vec<&str>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(super) fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"))
}

pub(super) fn ns_per_op(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"))
}
