//! What a connection text says of TLS, in libpq's words, and what of it contradicts itself.

use std::path::PathBuf;

use super::parameters::Taken;

/// How much TLS is demanded: libpq's `sslmode`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// What is asked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verification {
    /// That the server has its key.
    Key,
    /// Also that a known CA has signed it, and that it is valid today.
    Chain,
    /// Also that it is for the host that was asked for.
    Name,
}

/// The CAs that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    Platform,
    File(PathBuf),
}

/// TLS 1.`0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u8);

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ssl {
    pub(crate) mode: SslMode,
    /// Nothing is said before the handshake: for servers from version 17 on.
    pub(crate) direct: bool,
    pub(crate) roots: Option<Roots>,
    /// Revoked certificates.
    pub(crate) revoked: Option<PathBuf>,
    /// Our own certificates and their key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
    /// Whether the server is told, in the open, which host is meant.
    pub(crate) sni: bool,
    pub(crate) oldest: Version,
    pub(crate) newest: Version,
}

impl Ssl {
    /// Reads what was taken out of a connection text.
    ///
    /// # Errors
    /// A value that libpq does not know either, or values that contradict each other.
    pub(super) fn read(taken: &Taken) -> Result<Self, String> {
        let roots = taken.get("sslrootcert").map(|path| match path.as_str() {
            "system" => Roots::Platform,
            path => Roots::File(path.into()),
        });
        let mode = mode(taken, roots.as_ref())?;
        let ssl = Self {
            mode,
            direct: one_of(taken, "sslnegotiation", &["postgres", "direct"])? == 1,
            // What is not looked at is not read.
            roots: match mode {
                SslMode::VerifyFull => roots.or(Some(Roots::Platform)),
                _ => roots,
            },
            revoked: taken.get("sslcrl").map(PathBuf::from),
            own: own(taken)?,
            sni: one_of(taken, "sslsni", &["1", "0"])? == 0,
            oldest: version(taken, "ssl_min_protocol_version", Version(2))?,
            newest: version(taken, "ssl_max_protocol_version", Version(3))?,
        };
        ssl.check()?;
        Ok(ssl)
    }

    fn check(&self) -> Result<(), String> {
        let problem = if self.mode == SslMode::VerifyCa && self.roots.is_none() {
            "sslmode=verify-ca needs an sslrootcert: everybody can have a certificate that the platform's CAs have \
            signed; or write verify-full"
        } else if self.direct && self.mode < SslMode::Require {
            "sslnegotiation=direct needs sslmode=require or stronger"
        } else if self.revoked.is_some() && self.roots.is_none() {
            "sslcrl needs an sslrootcert"
        } else if self.newest < Version(2) {
            "ssl_max_protocol_version: TLS before 1.2 is not spoken"
        } else if self.newest < self.oldest {
            "ssl_min_protocol_version is above ssl_max_protocol_version"
        } else {
            return Ok(());
        };
        Err(problem.to_owned())
    }

    /// What is asked of the server's certificate. As with libpq, a CA that is stated is asked in any mode.
    pub(crate) fn verification(&self) -> Verification {
        match (self.mode, &self.roots) {
            (SslMode::VerifyFull, _) => Verification::Name,
            (_, Some(_)) => Verification::Chain,
            (_, None) => Verification::Key,
        }
    }
}

/// The position of a value among those that are known; the first is the default.
fn one_of(taken: &Taken, name: &str, known: &[&str]) -> Result<usize, String> {
    let Some(value) = taken.get(name) else {
        return Ok(0);
    };
    let position = known.iter().position(|known| known == value);
    position.ok_or_else(|| format!("{name}: known are {}", known.join(", ")))
}

fn mode(taken: &Taken, roots: Option<&Roots>) -> Result<SslMode, String> {
    use SslMode::{Allow, Disable, Prefer, Require, VerifyCa, VerifyFull};
    const MODES: [(&str, SslMode); 6] = [
        ("prefer", Prefer),
        ("disable", Disable),
        ("allow", Allow),
        ("require", Require),
        ("verify-ca", VerifyCa),
        ("verify-full", VerifyFull),
    ];
    let stated = one_of(taken, "sslmode", &MODES.map(|(name, _)| name))?;
    match (MODES[stated].1, roots) {
        (_, Some(Roots::Platform)) if !taken.contains_key("sslmode") => Ok(VerifyFull),
        (mode, Some(Roots::Platform)) if mode != VerifyFull => Err(
            "sslrootcert=system needs sslmode=verify-full: everybody can have a certificate that the platform's \
            CAs have signed"
                .to_owned(),
        ),
        (mode, _) => Ok(mode),
    }
}

fn own(taken: &Taken) -> Result<Option<(PathBuf, PathBuf)>, String> {
    const MODES: [&str; 3] = ["allow", "disable", "require"];
    match one_of(taken, "sslcertmode", &MODES)? {
        1 => return Ok(None),
        2 => {
            return Err("sslcertmode=require is not supported: whether a server asks for our certificate is its \
                own affair"
                .to_owned());
        }
        _ => {}
    }
    match (taken.get("sslcert"), taken.get("sslkey")) {
        (Some(certificates), Some(key)) => Ok(Some((certificates.into(), key.into()))),
        (None, None) => Ok(None),
        (Some(_), None) => Err("sslcert needs an sslkey".to_owned()),
        (None, Some(_)) => Err("sslkey needs an sslcert".to_owned()),
    }
}

fn version(taken: &Taken, name: &str, default: Version) -> Result<Version, String> {
    const VERSIONS: [(&str, u8); 4] =
        [("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)];
    if !taken.contains_key(name) {
        return Ok(default);
    }
    let at = one_of(taken, name, &VERSIONS.map(|(name, _)| name))?;
    Ok(Version(VERSIONS[at].1))
}

#[cfg(test)]
mod tests {
    use super::super::parameters::split;
    use super::*;

    fn read(query: &str) -> Result<Ssl, String> {
        Ssl::read(&split(&format!("postgres://app@db?{query}")).unwrap().1)
    }

    #[test]
    fn what_is_asked_of_a_certificate_is_what_libpq_asks() {
        use Verification::{Chain, Key, Name};
        for (query, mode, verification) in [
            ("", SslMode::Prefer, Key),
            ("sslmode=", SslMode::Prefer, Key),
            ("sslmode=allow", SslMode::Allow, Key),
            ("sslrootcert=/ca", SslMode::Prefer, Chain),
            ("sslmode=require", SslMode::Require, Key),
            ("sslmode=require&sslrootcert=/ca", SslMode::Require, Chain),
            (
                "sslmode=verify-ca&sslrootcert=/ca",
                SslMode::VerifyCa,
                Chain,
            ),
            (
                "sslmode=verify-full&sslrootcert=/ca",
                SslMode::VerifyFull,
                Name,
            ),
            ("sslmode=verify-full", SslMode::VerifyFull, Name),
            ("sslrootcert=system", SslMode::VerifyFull, Name),
        ] {
            let ssl = read(query).unwrap();
            assert_eq!(
                (ssl.mode, ssl.verification()),
                (mode, verification),
                "{query}"
            );
        }
        assert_eq!(
            read("sslmode=verify-full").unwrap().roots,
            Some(Roots::Platform)
        );
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (query, told) in [
            ("sslmode=sometimes", "known are prefer, disable"),
            ("sslmode=verify-ca", "needs an sslrootcert"),
            (
                "sslmode=verify-ca&sslrootcert=system",
                "needs sslmode=verify-full",
            ),
            (
                "sslmode=require&sslrootcert=system",
                "needs sslmode=verify-full",
            ),
            ("sslnegotiation=direct", "needs sslmode=require"),
            ("sslmode=require&sslcrl=/crl", "needs an sslrootcert"),
            ("sslcert=/cert", "needs an sslkey"),
            ("sslkey=/key", "needs an sslcert"),
            ("sslcertmode=require", "not supported"),
            ("ssl_max_protocol_version=TLSv1.1", "is not spoken"),
            (
                "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
                "is above",
            ),
            ("ssl_min_protocol_version=SSLv3", "known are TLSv1"),
            ("sslsni=yes", "known are 1, 0"),
        ] {
            let problem = read(query).unwrap_err();
            assert!(problem.contains(told), "{query}: {problem}");
        }
    }

    #[test]
    fn the_rest_is_read_as_it_is_meant() {
        let ssl =
            read("sslmode=require&sslnegotiation=direct&sslsni=0&ssl_min_protocol_version=TLSv1.3")
                .unwrap();
        assert!(ssl.direct && !ssl.sni);
        assert_eq!((ssl.oldest, ssl.newest), (Version(3), Version(3)));
        let own = read("sslcert=/cert&sslkey=/key").unwrap().own;
        assert_eq!(own, Some(("/cert".into(), "/key".into())));
        assert_eq!(
            read("sslcert=/cert&sslkey=/key&sslcertmode=disable")
                .unwrap()
                .own,
            None
        );
        assert_eq!(
            read("ssl_min_protocol_version=TLSv1").unwrap().oldest,
            Version(0)
        );
    }
}
