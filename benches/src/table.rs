//! Tables for people.

use std::fmt;

use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;

/// Rows of text under a header. Each column is as wide as its widest cell. The first column is
/// left-aligned, the others right-aligned. There are no lines, so that figures are easy to copy.
#[derive(Clone, Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Creates a table with these columns.
    pub fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(NOTHING)
            .set_header(header.into_iter().collect::<Vec<_>>());
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_padding((0, 0));
            } else {
                column
                    .set_padding((2, 0))
                    .set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row.
    pub fn add(&mut self, row: impl IntoIterator<Item = String>) {
        self.0.add_row(row.into_iter().collect::<Vec<_>>());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["", "p50", "rate"]);
        table.add(["raw".to_owned(), "480 ns".to_owned(), "2.08 M/s".to_owned()]);
        table.add([
            "rpc, bytes".to_owned(),
            "1 µs".to_owned(),
            "1.0 k/s".to_owned(),
        ]);
        let expected = "               p50      rate\n\
                        raw         480 ns  2.08 M/s\n\
                        rpc, bytes    1 µs   1.0 k/s\n";
        assert_eq!(table.to_string(), expected);
    }
}
