//! A password from the environment, put into a connection text that has none.

use std::fmt::Write as _;

/// `url` with `password`, if it has none. What is no connection text is left for the driver to refuse.
pub(super) fn with_password(url: &str, password: &str) -> String {
    if has_password(url).unwrap_or(true) {
        return url.to_owned();
    }
    add(url, password)
}

/// `None` if it is neither a URL nor pairs. By the text alone: it may have parameters that only one of the drivers reads.
fn has_password(text: &str) -> Option<bool> {
    let is_it = |pair: &str| {
        pair.split('=')
            .next()
            .is_some_and(|key| key.trim() == "password")
    };
    let Some((_, rest)) = text.split_once("://") else {
        let mut words = text.split_whitespace();
        return text.contains('=').then(|| words.any(is_it));
    };
    let (credentials, rest) = rest.split_once('@').unwrap_or(("", rest));
    let (_, query) = rest.split_once('?').unwrap_or((rest, ""));
    Some(credentials.contains(':') || query.split('&').any(is_it))
}

fn add(url: &str, password: &str) -> String {
    if !url.contains("://") {
        let escaped = password.replace('\\', "\\\\").replace('\'', "\\'");
        return format!("{url} password='{escaped}'");
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}password={}", percent_encoded(password))
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use tokio_postgres::Config;

    use super::*;

    #[test]
    fn any_password_arrives_as_it_is() {
        let password = "p@ss/w?rd'\\ &%=ü";
        for url in [
            "postgres://app@db",
            "postgres://app@db/shop",
            "postgres://app@db/shop?connect_timeout=3",
            "host=db user=app",
        ] {
            let config: Config = with_password(url, password).parse().unwrap();
            assert_eq!(config.get_password(), Some(password.as_bytes()), "{url}");
            assert_eq!(config.get_user(), Some("app"), "{url}");
        }
    }

    #[test]
    fn what_only_this_crate_reads_keeps_no_password_away() {
        for (url, with) in [
            (
                "postgres://app@db/shop?sslmode=verify-full&sslrootcert=/ca.pem",
                "postgres://app@db/shop?sslmode=verify-full&sslrootcert=/ca.pem&password=pw",
            ),
            (
                "host=db sslrootcert=/ca.pem",
                "host=db sslrootcert=/ca.pem password='pw'",
            ),
            (
                "postgres://app@db?sslpassword=x",
                "postgres://app@db?sslpassword=x&password=pw",
            ),
        ] {
            assert_eq!(with_password(url, "pw"), with);
        }
    }

    #[test]
    fn a_password_in_the_url_goes_first() {
        for url in [
            "postgres://app:own@db/shop",
            "postgres://app@db/shop?sslrootcert=/ca.pem&password=own",
            "postgres://:own@db?sslrootcert=/ca.pem",
            "host=db password=own",
            "host=db sslrootcert=/ca.pem password = 'o w n'",
            "no url",
        ] {
            assert_eq!(with_password(url, "other"), url);
        }
    }
}
