//! The table of `docs/connection-parameters.md`, for the tests that hold the drivers against it.

/// A row of it.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) example: &'static str,
    pub(crate) on_tokio_postgres: &'static str,
    pub(crate) on_sqlx: &'static str,
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    let page = include_str!("../../docs/connection-parameters.md");
    let table = page.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = |row: &'static str| -> Vec<_> {
        let cells = row.split('|').skip(1);
        cells.map(|cell| cell.trim().trim_matches('`')).collect()
    };
    rows.map(cells)
        .map(|cells| Row {
            name: cells[0],
            example: cells[1],
            on_tokio_postgres: cells[2],
            on_sqlx: cells[3],
        })
        .collect()
}
