//! The house stands: a file imports only from its own floor or below (ARCHITECTURE.md).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest prefix wins. What is not named here has no floor, and fails the test.
const FLOORS: &[(&str, u8)] = &[
    ("config", 0),
    ("error", 0),
    ("join", 0),
    ("observe", 0),
    ("parameters_page", 0),
    ("status", 0),
    ("sync", 0),
    ("sync_model", 0),
    ("warning", 0),
    ("admission", 1),
    ("fleet", 1),
    ("plan", 1),
    ("session", 1),
    ("bulkhead", 2),
    ("driver", 3),
    ("pool", 3),
    ("boot", 4),
    ("driver/sqlx", 4),
    ("driver/tokio_postgres", 4),
    ("driver_sqlx", 4),
    ("driver_tokio_postgres", 4),
    ("fleet/check", 4),
    ("fleet/seats", 4),
    ("metrics", 4),
    ("tls", 4),
    ("bin", 5),
];

fn floor(module: &str) -> Option<u8> {
    let on = |name: &&(&str, u8)| {
        module
            .strip_prefix(name.0)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    FLOORS
        .iter()
        .filter(on)
        .max_by_key(|f| f.0.len())
        .map(|f| f.1)
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Every file of src but lib.rs: its module path (`fleet/check`) and its text without comments.
fn files() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let file = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = |line: &&str| !line.trim_start().starts_with("//");
        let code: Vec<&str> = text.lines().filter(code).collect();
        let module = path.strip_prefix(&root).unwrap().with_extension("");
        let module = module.to_str().unwrap().trim_end_matches("/mod").to_owned();
        (module, code.join("\n"))
    };
    let mut files: BTreeMap<_, _> = paths.into_iter().map(file).collect();
    assert!(files.remove("lib").is_some() && files.len() > 20);
    files
}

/// The `crate::a::b` paths of a file of the library, as `a/b`. A binary is a crate of its own, above the library.
fn imports(code: &str) -> impl Iterator<Item = String> {
    code.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_' || c == ':'));
        let path = &rest[..end.unwrap_or(rest.len())];
        path.trim_end_matches(':').replace("::", "/")
    })
}

#[test]
fn a_file_imports_only_from_its_own_floor_or_below() {
    for (module, code) in files() {
        let own = floor(&module).unwrap_or_else(|| panic!("{module} has no floor: add it"));
        if own == floor("bin").unwrap() {
            continue;
        }
        for import in imports(&code).filter(|import| !import.is_empty()) {
            let other = floor(&import).unwrap_or_else(|| panic!("{module}: {import} has no floor"));
            assert!(
                other <= own,
                "{module} (floor {own}) imports {import} (floor {other})"
            );
        }
    }
}

#[test]
fn the_decisions_know_no_runtime_no_clock_and_no_driver() {
    for (module, code) in files() {
        if floor(&module) == Some(1) && !module.ends_with("tests") {
            for word in [
                "tokio",
                "Instant::now",
                "SystemTime",
                "deadpool",
                "std::net",
            ] {
                assert!(!code.contains(word), "{module} mentions {word}");
            }
        }
    }
}

/// The words of a text, so that it may be formatted in any way.
fn words(text: &str) -> String {
    let words: String = text.split_whitespace().collect();
    words.replace(",)", ")")
}

/// A page of the docs, and the example that its program has become.
const MOVED_OVER: [(&str, &str); 2] = [
    ("docs/from-pgpool.md", "examples/todos_sqlx/main.rs"),
    (
        "docs/from-deadpool-postgres.md",
        "examples/todos_tokio_postgres.rs",
    ),
];

#[test]
fn the_programs_that_the_pages_move_over_are_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (page, example) in MOVED_OVER {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let diff = text.split("```diff").nth(1).unwrap().split("```").next();
        let after = diff.unwrap().lines().filter(|line| !line.starts_with('-'));
        let after: Vec<_> = after.map(|line| line.get(1..).unwrap_or("")).collect();
        let code = fs::read_to_string(root.join(example)).unwrap();
        let code = code.lines().filter(|line| !line.starts_with("//!"));
        let code = code.collect::<Vec<_>>().join("\n");
        let code = code.replace("\"examples/todos_sqlx/migrations\"", "");
        assert_eq!(words(&after.join("\n")), words(&code), "{page}");
    }
}

#[test]
fn features_are_decided_at_module_lines_of_lib_rs_only() {
    for (module, code) in files() {
        assert!(!code.contains("feature ="), "{module} depends on a feature");
    }
}

/// The text above the declaration of a public type: what has none is private to the crate, which the lint
/// `unreachable_pub` sees to.
fn docs_of_types(text: &str) -> Vec<(&str, String)> {
    let lines: Vec<_> = text.lines().collect();
    let declares = |line: &str| {
        ["pub struct ", "pub enum ", "pub trait "]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let is_above = |line: &&&str| !line.is_empty() && !line.starts_with('}');
    let above = |at: usize| {
        lines[..at]
            .iter()
            .rev()
            .take_while(is_above)
            .copied()
            .collect::<Vec<_>>()
            .join("\n")
    };
    let types = lines.iter().enumerate().filter(|(_, line)| declares(line));
    types.map(|(at, line)| (*line, above(at))).collect()
}

#[test]
fn every_public_type_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let mut seen = 0;
    for path in paths
        .iter()
        .filter(|path| !path.starts_with(root.join("bin")))
    {
        for (declared, docs) in docs_of_types(&fs::read_to_string(path).unwrap()) {
            assert!(
                docs.contains("/// # Examples"),
                "{}: {declared} has none",
                path.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}
