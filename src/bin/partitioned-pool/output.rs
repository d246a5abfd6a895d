//! What goes to the terminal and to files, and the exit code.

use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// What a command found.
pub(crate) struct Answer {
    /// For standard output.
    pub(crate) text: String,
    /// Whether everything is as it should be.
    pub(crate) good: bool,
}

impl Answer {
    pub(crate) fn of(text: impl Display, good: bool) -> Self {
        let text = text.to_string();
        Self { text, good }
    }
}

/// Why nothing was done: one line that says what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) String);

impl Stop {
    pub(crate) fn new(problem: impl Display) -> Self {
        Self(problem.to_string())
    }
}

/// Says what there is to say. A reader that has left, as `head` does, is no error.
pub(crate) fn exit(done: Result<Answer, Stop>) -> ExitCode {
    match done.and_then(|answer| answer.print().map(|()| answer.good)) {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(Stop(problem)) => {
            // With standard error closed, the exit code must do.
            let _ = writeln!(io::stderr(), "partitioned-pool: {problem}");
            ExitCode::from(2)
        }
    }
}

impl Answer {
    fn print(&self) -> Result<(), Stop> {
        let mut stdout = io::stdout().lock();
        let written = writeln!(stdout, "{}", self.text.trim_end());
        match written.and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Stop::new(format!(
                "standard output cannot be written: {error}"
            ))),
            _ => Ok(()),
        }
    }
}

/// The text of a file; `-` is standard input.
pub(crate) fn read(file: &Path) -> Result<String, Stop> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    text.map_err(|error| Stop(format!("{} cannot be read: {error}", file.display())))
}

/// Writes a file.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Stop> {
    let written = fs::write(file, text);
    written.map_err(|error| Stop(format!("{} cannot be written: {error}", file.display())))
}
