//! Tables and their cells.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Returns a table whose first column is text.
pub(super) fn table_of(header: Vec<&str>, rows: impl Iterator<Item = Vec<String>>) -> Table {
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
