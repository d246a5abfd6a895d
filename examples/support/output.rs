//! What goes to files and to the terminal.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the JSON goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Json {
    Stdout,
    File(PathBuf),
}

impl Json {
    /// `-` is standard output.
    pub(crate) fn to(file: String) -> Self {
        match file.as_str() {
            "-" => Json::Stdout,
            _ => Json::File(file.into()),
        }
    }
}

/// How the program ends: 0 without findings, 1 with some, 2 if it could not be done. What is to be said is said.
pub(crate) fn exit<F: Display>(done: Result<Vec<F>, Box<dyn Error>>) -> ExitCode {
    match done {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            findings.iter().for_each(|finding| eprintln!("{finding}"));
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Writes a file, and the folder it is in.
///
/// # Errors
/// One sentence that names the file.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let made = std::fs::create_dir_all(folder);
    let written = made.and_then(|()| std::fs::write(file, text));
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
}

/// Progress on standard error: one line that changes on a terminal, and one line each elsewhere.
#[derive(Default)]
pub(crate) struct Line {
    shown: bool,
}

impl Line {
    /// Shows it.
    pub(crate) fn show(&mut self, progress: &impl Display) {
        let mut stderr = io::stderr();
        // Nobody needs a run to stop because its progress cannot be shown.
        let _ = if stderr.is_terminal() {
            self.shown = true;
            write!(stderr, "\r\x1b[K{progress}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{progress}")
        };
    }

    /// Leaves the line.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprintln!();
        }
    }
}
