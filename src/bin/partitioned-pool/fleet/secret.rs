//! A password from the environment, put into a connection text that has none.

use std::fmt::Write as _;

use tokio_postgres::Config;

/// `url` with `password`, if it can be read and has none. What cannot be read is left for the driver to refuse.
pub(super) fn with_password(url: &str, password: &str) -> String {
    match url.parse::<Config>() {
        Ok(config) if config.get_password().is_none() => add(url, password),
        _ => url.to_owned(),
    }
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
    fn a_password_in_the_url_goes_first() {
        for url in [
            "postgres://app:own@db/shop",
            "host=db password=own",
            "no url",
        ] {
            assert_eq!(with_password(url, "other"), url);
        }
    }
}
