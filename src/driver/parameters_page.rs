//! The table of `docs/connection-parameters.md`, for the tests that hold the drivers against it.

/// All rows: the name, an example, what becomes of it on tokio-postgres, and on sqlx.
pub(crate) fn rows() -> Vec<[&'static str; 4]> {
    let page = include_str!("../../docs/connection-parameters.md");
    let table = page.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = |row: &'static str| {
        let mut cells = row.split('|').skip(1);
        [(); 4].map(|()| cells.next().unwrap_or_default().trim().trim_matches('`'))
    };
    rows.map(cells).collect()
}
