//! Plain tables: the first column to the left, numbers to the right, no lines.

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};

/// A number column is at least this wide, so that the columns of one table line up with those of the next.
const NUMBER_WIDTH: u16 = 8;

/// A table under construction.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// A table with these column heads.
    pub(crate) fn new(header: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.iter().copied());
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_padding((0, 0));
            } else {
                column.set_padding((2, 0)).set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(NUMBER_WIDTH + 2)));
            }
        }
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: &[String]) {
        self.0.add_row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.to_string().lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_each_other() {
        let mut table = Table::new(&["limiter", "allowed", "worst 1s"]);
        table.row(&["none".to_owned(), "35".to_owned(), "1234567890".to_owned()]);
        table.row(&["fixed-window".to_owned(), "15".to_owned(), "1".to_owned()]);
        assert_eq!(
            table.to_string(),
            "limiter        allowed    worst 1s\nnone                35  1234567890\nfixed-window        15           1\n",
        );
    }
}
