//! Tables for a terminal.

use std::fmt;

/// Rows of cells under headings. The first columns are words and stand to the left, the others are figures and
/// stand to the right.
pub(crate) struct Table {
    words: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings, of which the first `words` are of words.
    pub(crate) fn new<H: ToString>(words: usize, heads: impl IntoIterator<Item = H>) -> Self {
        let heads = heads.into_iter().map(|head| head.to_string()).collect();
        Self {
            words,
            rows: vec![heads],
        }
    }

    /// One more row.
    pub(crate) fn row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter().map(|cell| cell.to_string());
        self.rows.push(cells.collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.rows[0].len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let width = *width;
                line += if n == 0 { "" } else { "  " };
                line += &if n < self.words {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_to_the_left_and_figures_to_the_right() {
        let mut table = Table::new(1, ["flow", "served"]);
        table.row(["a", "1,000"]);
        table.row(["größer", "9"]);
        let text = "flow    served\na        1,000\ngrößer       9\n";
        assert_eq!(table.to_string(), text);
    }
}
