//! What the database, the way to it, or who was asked on the way has reported.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::config::PoolerMode;
use crate::status::Seconds;

use super::acquire::Phase;

/// What a driver, the network or the server reported.
///
/// Of what the server answered it tells the message and the SQLSTATE. The rest (DETAIL, HINT, context) can hold values of
/// a statement's parameters, which belong in no log: it is in the driver's own error, which
/// [`driver_error`](Self::driver_error) gives. For the same reason, a failure that the server answered has no
/// [`source`](StdError::source), since reports print that unasked; any other has the driver's own error.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::error::Failure;
///
/// let full = Failure::new(Some("53300".to_owned()), "sorry, too many clients already");
/// assert!(full.is_too_many_connections() && full.is_transient());
/// assert!(full.advice().is_some());
/// let wrong = Failure::new(Some("28P01".to_owned()), "password authentication failed");
/// assert!(wrong.is_refused_login() && !wrong.is_transient());
///
/// let detail = "Key (email)=(ann@example.com) already exists.";
/// let failure = Failure::answered("23505", "duplicate key value", detail);
/// assert_eq!(failure.to_string(), "duplicate key value (SQLSTATE 23505)");
/// assert!(failure.source().is_none());
/// assert_eq!(failure.driver_error().to_string(), detail);
/// ```
#[derive(Clone)]
pub struct Failure(Box<Reported>);

/// Boxed, since it is a part of every error.
#[derive(Clone)]
struct Reported {
    sqlstate: Option<String>,
    /// What may be told of the server's answer, if it is one.
    said: Option<String>,
    known: Known,
    /// The part of opening a connection that has failed, if it was one of its own.
    phase: Option<Phase>,
    source: Arc<dyn StdError + Send + Sync>,
}

/// What is known of a failure that has no SQLSTATE.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// The other side ended the connection without a word.
    Lost,
    /// What to do about it.
    Advice(&'static str),
}

impl Failure {
    /// A failure with the server's SQLSTATE, if one is known. It is told by the text of `source` and of all that it
    /// comes from; for an answer of the server, see [`answered`](Self::answered).
    pub fn new(
        sqlstate: Option<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Box::new(Reported {
            sqlstate,
            said: None,
            known: Known::Nothing,
            phase: None,
            source: source.into().into(),
        }))
    }

    /// What the server answered: its SQLSTATE and its message. The driver's `error` is kept and not printed.
    pub fn answered(
        sqlstate: impl Into<String>,
        message: impl Into<String>,
        error: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let mut failure = Self::new(Some(sqlstate.into()), error);
        failure.0.said = Some(message.into());
        failure
    }

    /// The driver's own error; downcast it for more. What it prints, the server's DETAIL included, is the driver's affair.
    #[must_use]
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.source
    }

    /// The failure of a connection that the other side ended without a word: it
    /// [can pass](Self::is_transient).
    pub fn lost(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let mut failure = Self::new(None, source);
        failure.0.known = Known::Lost;
        failure
    }

    /// The same failure, of this part of opening a connection.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.0.phase = Some(phase);
        self
    }

    /// The part of opening a connection that has failed, if it was another than connecting itself.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        let of_password = || self.password_provider().map(|_| Phase::Password);
        self.0.phase.or_else(of_password)
    }

    /// The same, with what its owner can do about it.
    #[must_use]
    pub fn advising(mut self, advice: &'static str) -> Self {
        self.0.known = Known::Advice(advice);
        self
    }

    /// What is known of a pooler that is in between and that the configuration does not state, if that is the
    /// failure.
    #[must_use]
    pub fn undeclared_pooler(&self) -> Option<&UndeclaredPooler> {
        self.0.source.downcast_ref()
    }

    /// The server's SQLSTATE: five characters, such as `53300`.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// The server, the role or the database has no connection left for us (`53300`).
    #[must_use]
    pub fn is_too_many_connections(&self) -> bool {
        self.sqlstate() == Some("53300")
    }

    /// The server is starting up, shutting down or recovering (`57P01` to `57P03`).
    #[must_use]
    pub fn is_server_restarting(&self) -> bool {
        matches!(self.sqlstate(), Some("57P01" | "57P02" | "57P03"))
    }

    /// The server refused who we say we are, or what we want to open (`28xxx`, `3D000`, `42501`).
    /// Trying again changes nothing.
    #[must_use]
    pub fn is_refused_login(&self) -> bool {
        self.sqlstate()
            .is_some_and(|code| code.starts_with("28") || matches!(code, "3D000" | "42501"))
    }

    /// Whether it can pass by itself: the network, a server that restarts or is full for the moment,
    /// a pooler that has lost its server. Connecting is then tried again, within the caller's
    /// deadline; everything else fails at once.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.sqlstate() {
            Some(code) => {
                let class = code.get(..2).unwrap_or_default();
                matches!(class, "08" | "53" | "58") || self.is_server_restarting()
            }
            None => matches!(self.0.known, Known::Lost) || self.is_of_the_network(),
        }
    }

    fn is_of_the_network(&self) -> bool {
        self.causes().any(|cause| {
            let of_network = cause.downcast_ref::<io::Error>();
            of_network.is_some_and(|error| !is_an_answer(error))
        })
    }

    /// The password provider that failed, if it was one.
    #[must_use]
    pub fn password_provider(&self) -> Option<&str> {
        let found = self.causes().find_map(|cause| cause.downcast_ref());
        found.map(NoPassword::provider)
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first: &(dyn StdError + 'static) = &*self.0.source;
        std::iter::successors(Some(first), |error| StdError::source(*error))
    }

    /// What the owner can do about it, where that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match self.0.known {
            Known::Advice(advice) => Some(advice),
            Known::Nothing | Known::Lost => self.advice_by_code(),
        }
    }

    fn advice_by_code(&self) -> Option<&'static str> {
        let code = self.sqlstate()?;
        Some(match code {
            "08P01" => {
                "this is a pooler's word: if it names a startup parameter, take it out of the url or add it to PgBouncer's \
                 ignore_startup_parameters; if it has no more connections, run the fleet check with its \
                 max_client_conn stated"
            }
            "28P01" => {
                "check the user and the password in the url, or that of the password provider"
            }
            _ if code.starts_with("28") => "check the user in the url and the server's pg_hba.conf",
            "3D000" => "check the database name in the url",
            "42501" => "grant the role CONNECT on the database",
            "53300" => "the server, role or database has no free connection: run the fleet check",
            "57P03" => "the server is starting up: try again shortly",
            _ => return None,
        })
    }
}

/// Not the way to the other side failed: it is not what was asked for, and will not be. TLS says so, and certificates.
fn is_an_answer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::Unsupported
    )
}

/// A [`PasswordProvider`](crate::driver::PasswordProvider) gave no password.
///
/// It is the [`source`](StdError::source) of a [`Failure`] whose
/// [`password_provider`](Failure::password_provider) is its name.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::error::{Failure, NoPassword};
///
/// /// What the provider itself said.
/// fn said(failure: &Failure) -> Option<String> {
///     let no_password: &NoPassword = failure.source()?.downcast_ref()?;
///     no_password.source().map(ToString::to_string)
/// }
/// ```
#[derive(Debug, Error)]
#[error("the password provider {provider} {what}")]
pub struct NoPassword {
    provider: String,
    what: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl NoPassword {
    /// It failed with an error of its own.
    pub(crate) fn failed(provider: &str, source: Box<dyn StdError + Send + Sync>) -> Self {
        Self {
            provider: provider.to_owned(),
            what: "failed".to_owned(),
            source,
        }
    }

    /// It did not answer in time.
    pub(crate) fn late(provider: &str, limit: Duration) -> Self {
        Self {
            provider: provider.to_owned(),
            what: format!("gave no answer within {}", Seconds(limit)),
            source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Its name.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }
}

/// A pooler is in between that the configuration does not state.
///
/// Nothing was set for the session: behind a transaction pooler, that would have stayed with a backend which serves
/// a stranger next.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolerMode;
/// use partitioned_pool::error::{Failure, UndeclaredPooler};
///
/// let failure = Failure::from(UndeclaredPooler::of_mode(PoolerMode::Transaction));
/// let found = failure.undeclared_pooler().and_then(|found| found.mode);
/// assert_eq!(found, Some(PoolerMode::Transaction));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a pooler is in between, which the configuration does not state")]
#[non_exhaustive]
pub struct UndeclaredPooler {
    /// Its mode, if the driver has found it.
    pub mode: Option<PoolerMode>,
}

impl UndeclaredPooler {
    /// It is there, and that is all that is known.
    #[must_use]
    pub fn of_unknown_mode() -> Self {
        Self { mode: None }
    }

    /// A pooler that is in this mode.
    #[must_use]
    pub fn of_mode(mode: PoolerMode) -> Self {
        Self { mode: Some(mode) }
    }
}

impl From<UndeclaredPooler> for Failure {
    fn from(found: UndeclaredPooler) -> Self {
        Self::new(None, found).advising(
            "state the pooler beside the url that leads to it ([pooler] in TOML, with mode and max_client_conn), or \
             connect to Postgres directly",
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.said {
            Some(said) => f.write_str(said)?,
            None => {
                let texts: Vec<String> = self.causes().map(ToString::to_string).collect();
                f.write_str(&texts.join(": "))?;
            }
        }
        match self.sqlstate() {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

/// By what it tells, since the driver's own error prints all that the server said.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Failure");
        shown.field("told", &self.to_string());
        shown.field("phase", &self.phase()).finish()
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.said {
            Some(_) => None,
            None => Some(&*self.0.source),
        }
    }
}
