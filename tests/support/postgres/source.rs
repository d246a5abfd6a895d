//! Which source is taken, from the environment read in one place; and what a failed search says.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use super::local;

const URL: &str = "PARTITIONED_POOL_PG_URL";
const ONLY: &str = "PARTITIONED_POOL_PG_SOURCE";
const IMAGE: &str = "PARTITIONED_POOL_PG_IMAGE";
const IMAGE_OF: &str = "PARTITIONED_POOL_PG_IMAGE_";
const DEFAULT_MAJOR: u32 = 17;

/// The kinds of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A server that the user named.
    Url,
    /// Testcontainers on a Docker engine.
    Docker,
    /// Local server binaries.
    Local,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => URL,
            Self::Docker => "Testcontainers",
            Self::Local => "local binaries",
        })
    }
}

/// What the user chose: the environment, read once.
#[derive(Clone, Default)]
pub(crate) struct Choice {
    /// The server that the user named.
    pub(crate) url: Option<String>,
    /// The one source that may be used.
    pub(crate) only: Option<Kind>,
    /// The image for callers that take any version.
    pub(crate) image: Option<String>,
    /// The images for callers that want a version.
    pub(crate) images: BTreeMap<u32, String>,
    /// Whether the Docker engine is on another host, so that a port on its loopback is out of reach.
    pub(crate) engine_elsewhere: bool,
    /// The folders in which server binaries are looked for, in this order.
    pub(crate) folders: Vec<PathBuf>,
}

impl Choice {
    /// Reads the environment and the usual folders of this machine.
    ///
    /// # Errors
    /// A variable that cannot be understood.
    pub(crate) fn from_env() -> Result<Self, Unavailable> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let choice = Self::read(std::env::vars_os().filter_map(text))?;
        // Inside a container the engine is that of the host around it.
        let engine_elsewhere =
            choice.engine_elsewhere || std::path::Path::new("/.dockerenv").exists();
        Ok(Self {
            engine_elsewhere,
            folders: local::usual_folders(),
            ..choice
        })
    }

    /// Reads the variables alone. An empty one counts as not set.
    ///
    /// # Errors
    /// A variable that cannot be understood.
    pub(crate) fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Unavailable> {
        let mut choice = Self::default();
        for (name, value) in variables
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
        {
            match name.as_str() {
                URL => choice.url = Some(value),
                ONLY => choice.only = Some(kind_of(value)?),
                IMAGE => choice.image = Some(value),
                "DOCKER_HOST" => choice.engine_elsewhere = !value.starts_with("unix:"),
                _ => {
                    if let Some(major) = name.strip_prefix(IMAGE_OF) {
                        choice.images.insert(major_of(&name, major)?, value);
                    }
                }
            }
        }
        Ok(choice)
    }

    /// The sources to try, in order.
    pub(crate) fn order(&self) -> Vec<Kind> {
        match (self.only, &self.url) {
            (Some(only), _) => vec![only],
            (None, Some(_)) => vec![Kind::Url],
            (None, None) => vec![Kind::Docker, Kind::Local],
        }
    }

    /// The image for a caller that wants this version, or any.
    pub(crate) fn image(&self, version: Option<u32>) -> String {
        let chosen = match version {
            Some(major) => self.images.get(&major),
            None => self.image.as_ref(),
        };
        chosen
            .cloned()
            .unwrap_or_else(|| format!("postgres:{}", version.unwrap_or(DEFAULT_MAJOR)))
    }
}

fn kind_of(value: String) -> Result<Kind, Unavailable> {
    match value.trim() {
        "url" => Ok(Kind::Url),
        "docker" => Ok(Kind::Docker),
        "local" => Ok(Kind::Local),
        _ => Err(Unavailable::Variable {
            name: ONLY.to_owned(),
            value,
            must: "be url, docker or local",
        }),
    }
}

fn major_of(name: &str, major: &str) -> Result<u32, Unavailable> {
    let must = "end in a major version of Postgres, as in PARTITIONED_POOL_PG_IMAGE_17";
    major.parse().map_err(|_| Unavailable::Variable {
        name: name.to_owned(),
        value: major.to_owned(),
        must,
    })
}

/// Where a server came from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A server that the user named.
    Url {
        host: String,
        port: u16,
        database: String,
    },
    /// A container.
    Docker {
        image: String,
        container: String,
        host: String,
        port: u16,
    },
    /// A throw-away cluster of local binaries.
    Local {
        folder: PathBuf,
        user: Option<String>,
        port: u16,
    },
}

impl Source {
    /// The kind of the source.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Url { .. } => Kind::Url,
            Self::Docker { .. } => Kind::Docker,
            Self::Local { .. } => Kind::Local,
        }
    }

    pub(super) fn host(&self) -> &str {
        match self {
            Self::Url { host, .. } | Self::Docker { host, .. } => host,
            Self::Local { .. } => "127.0.0.1",
        }
    }

    pub(super) fn port(&self) -> u16 {
        match *self {
            Self::Url { port, .. } | Self::Docker { port, .. } | Self::Local { port, .. } => port,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Url { database, .. } => write!(f, "{kind}, database {database}")?,
            Self::Docker {
                image, container, ..
            } => write!(f, "{kind}, image {image}, container {container}")?,
            Self::Local { folder, user, .. } => {
                write!(f, "{kind} in {}", folder.display())?;
                if let Some(user) = user {
                    write!(f, ", run as {user}")?;
                }
            }
        }
        write!(f, " on {}:{}", self.host(), self.port())
    }
}

/// Why one source gave no server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// There is no such source here.
    Absent(String),
    /// The source is there, and no server came of it.
    Failed(String),
    /// The source has servers, and none of the wanted major version.
    WrongVersion { wanted: u32, found: Vec<u32> },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(reason) | Self::Failed(reason) => f.write_str(reason),
            Self::WrongVersion { wanted, found } => {
                let found: Vec<_> = found.iter().map(u32::to_string).collect();
                write!(
                    f,
                    "Postgres {wanted} is wanted, and this is {}",
                    found.join(" and ")
                )
            }
        }
    }
}

/// A source that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The source.
    pub(crate) kind: Kind,
    /// The reason.
    pub(crate) why: Why,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.why)
    }
}

/// No server for the caller: what was tried, why each failed, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// An environment variable that cannot be understood.
    #[error("{name} must {must}; it has `{value}`")]
    Variable {
        name: String,
        value: String,
        must: &'static str,
    },
    /// No source gave a server.
    #[error("{}", report(refusals, *forced))]
    NoServer {
        refusals: Vec<Refusal>,
        forced: Option<Kind>,
    },
}

impl Unavailable {
    /// Whether servers are here, and only the wanted major version is not. A test that asked for one may
    /// then be skipped, and must say so; not if the user forced a source, who then wants to see the failure.
    pub(crate) fn may_skip(&self) -> bool {
        match self {
            Self::NoServer {
                refusals,
                forced: None,
            } => refusals
                .iter()
                .any(|refusal| matches!(refusal.why, Why::WrongVersion { .. })),
            Self::NoServer {
                forced: Some(_), ..
            }
            | Self::Variable { .. } => false,
        }
    }
}

fn report(refusals: &[Refusal], forced: Option<Kind>) -> String {
    let mut text = "no Postgres to run on. Tried:".to_owned();
    for Refusal { kind, why } in refusals {
        text += &format!("\n  - {kind}: {why}");
    }
    if forced.is_some() {
        text += &format!("\n{ONLY} allows no other source; unset it to let the next one be tried.");
    }
    text + "\nDo one of these:\
        \n  - install Docker, start its engine, and let it pull postgres:17, or name an image that it has in PARTITIONED_POOL_PG_IMAGE\
        \n    (tests/images/build.sh makes one from Debian's packages);\
        \n  - install the server's binaries (Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql@17);\
        \n  - name a server that may be written to in PARTITIONED_POOL_PG_URL, as postgres://user:password@host:5432/database."
}

/// An error with all its causes, since many print only the outermost.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text += &format!(": {words}");
        }
        cause = error.source();
    }
    text
}
