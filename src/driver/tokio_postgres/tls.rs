//! TLS by rustls, as a connection text asks for it.
//!
//! Without the feature `tls`, `tls_absent.rs` is in this place.

use std::fmt;
use std::fs::metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use ring::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, OtherError,
    RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::driver_tokio_postgres::ssl::{Roots, Ssl, SslMode, Verification, Version};

/// What a server of version 17 wants to be asked for when the handshake comes first.
const ALPN: &[u8] = b"postgresql";

/// What the connections of one partition have in common.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Inner>);

struct Inner {
    ssl: Ssl,
    current: Mutex<Current>,
    has_told: AtomicBool,
}

/// The files as they were when they were read.
struct Current {
    stamps: Vec<Stamp>,
    config: Arc<ClientConfig>,
}

type Stamp = Option<(Option<SystemTime>, u64)>;

impl Tls {
    /// `None` if it is never to be spoken.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub(crate) fn new(ssl: &Ssl) -> Result<Option<Self>, String> {
        if ssl.mode == SslMode::Disable {
            return Ok(None);
        }
        let current = Mutex::new(Current::read(ssl)?);
        Ok(Some(Self(Arc::new(Inner {
            ssl: ssl.clone(),
            current,
            has_told: AtomicBool::new(false),
        }))))
    }

    /// Whether the handshake comes first.
    pub(crate) fn is_direct(&self) -> bool {
        self.0.ssl.direct
    }

    /// Once for each partition: that a connection goes without what it prefers.
    pub(crate) fn tell_once(&self, tell: impl FnOnce()) {
        if !self.0.has_told.swap(true, Ordering::Relaxed) {
            tell();
        }
    }

    /// Encrypts a line to a server that expects the handshake.
    ///
    /// # Errors
    /// Of the kind `InvalidData` if the other side, or its certificate, is not what we want it to be: trying again
    /// changes nothing.
    pub(crate) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        host: &str,
    ) -> io::Result<Encrypted<S>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| refused(format!("TLS with {host}: it is no name for a certificate")))?;
        let connector = TlsConnector::from(self.config());
        let stream = connector.connect(name, socket).await;
        let stream = stream.map_err(|error| self.explained(host, error))?;
        if self.is_direct() && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(refused(format!(
                "TLS with {host}: it does not say that it speaks Postgres (sslnegotiation=direct)"
            )));
        }
        Ok(Encrypted(stream))
    }

    /// What is in the files now. Files that cannot be used, half-written ones for instance, change nothing.
    fn config(&self) -> Arc<ClientConfig> {
        let Inner { ssl, current, .. } = &*self.0;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.stamps != stamps(ssl) {
            match Current::read(ssl) {
                Ok(renewed) => *current = renewed,
                Err(problem) => {
                    tracing::warn!(%problem, "changed files for TLS cannot be used; the old ones hold");
                }
            }
        }
        Arc::clone(&current.config)
    }

    fn explained(&self, host: &str, error: io::Error) -> io::Error {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
        let Some(RustlsError::InvalidCertificate(invalid)) = cause else {
            return io::Error::new(error.kind(), format!("TLS with {host}: {error}"));
        };
        let roots = match &self.0.ssl.roots {
            Some(Roots::File(path)) => path.display().to_string(),
            _ => "the platform's".to_owned(),
        };
        use CertificateError::{
            BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, Other,
            Revoked, UnknownIssuer,
        };
        let why = match invalid {
            // A CA that has the name of the right one is none, either.
            UnknownIssuer | BadSignature => {
                format!("is signed by none of the CAs that are known ({roots})")
            }
            Expired | ExpiredContext { .. } => "has expired".to_owned(),
            NotValidForName | NotValidForNameContext { .. } => "is for another host".to_owned(),
            Revoked => "is revoked".to_owned(),
            Other(why) if why.0.is::<GivenAsCa>() => {
                return refused(format!(
                    "TLS with {host}: its certificate is itself given as a CA ({roots}): give that of the CA which has \
                     signed it; if it has signed itself, make a CA, and sign the server's certificate by that"
                ));
            }
            // A type of a crate that rustls does not show.
            Other(why) if why.to_string() == "CaUsedAsEndEntity" => {
                "is marked as a CA, which that of a server must not be".to_owned()
            }
            _ => "cannot be trusted".to_owned(),
        };
        refused(format!("TLS with {host}: its certificate {why}: {invalid}"))
    }
}

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Neither certificates nor keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.ssl).finish()
    }
}

fn files(ssl: &Ssl) -> impl Iterator<Item = &PathBuf> {
    let roots = match &ssl.roots {
        Some(Roots::File(path)) => Some(path),
        _ => None,
    };
    let own = ssl
        .own
        .iter()
        .flat_map(|(certificates, key)| [certificates, key]);
    roots.into_iter().chain(&ssl.revoked).chain(own)
}

fn stamps(ssl: &Ssl) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let known = metadata(path).ok()?;
        Some((known.modified().ok(), known.len()))
    };
    files(ssl).map(stamp).collect()
}

impl Current {
    fn read(ssl: &Ssl) -> Result<Self, String> {
        // First: what changes in the meantime is read again.
        let stamps = stamps(ssl);
        let config = Arc::new(client_config(ssl)?);
        Ok(Self { stamps, config })
    }
}

fn client_config(ssl: &Ssl) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: Vec<&SupportedProtocolVersion> =
        [(2, &rustls::version::TLS12), (3, &rustls::version::TLS13)]
            .into_iter()
            .filter(|(minor, _)| (ssl.oldest..=ssl.newest).contains(&Version(*minor)))
            .map(|(_, version)| version)
            .collect();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&versions);
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = builder.dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(Verifier::new(ssl, provider)?));
    let mut config = match &ssl.own {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => builder
            .with_client_auth_cert(certificates_in(certificates, "sslcert")?, key_in(key)?)
            .map_err(|error| format!("sslkey {}: {error}", key.display()))?,
    };
    config.enable_sni = ssl.sni;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// The certificates of a PEM file: at least one.
fn certificates_in(path: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!(
            "{name} {}: has no certificate in PEM",
            path.display()
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(unread(path, name, error, "is not in PEM")),
    }
}

fn key_in(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let read = PrivateKeyDer::from_pem_file(path);
    read.map_err(|error| {
        let otherwise = "has no key in PEM that is not encrypted";
        unread(path, "sslkey", error, otherwise)
    })
}

/// Nothing of a file's content comes into a text, whatever it should be: one file may have certificate and key, and an
/// error of PEM repeats the line that it does not understand.
fn unread(path: &Path, name: &str, error: PemError, otherwise: &str) -> String {
    let path = path.display();
    match error {
        PemError::Io(error) => format!("{name} {path}: {error}"),
        _ => format!("{name} {path}: {otherwise}"),
    }
}

/// The server shows one of the certificates that are given as CAs, and is not to be trusted by that.
#[derive(Debug, thiserror::Error)]
#[error("it is itself given as a CA")]
struct GivenAsCa;

/// What is asked of the server's certificate.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// The certificates in the file of CAs.
    given: Vec<CertificateDer<'static>>,
    /// Asked for chain and name; `None` if only the key is to be proved.
    authority: Option<Arc<WebPkiServerVerifier>>,
    name_matters: bool,
}

impl Verifier {
    fn new(ssl: &Ssl, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let given = match &ssl.roots {
            Some(Roots::File(path)) => certificates_in(path, "sslrootcert")?,
            _ => Vec::new(),
        };
        let authority = match &ssl.roots {
            Some(roots) => Some(authority(ssl, store(roots, &given)?, &provider)?),
            None => None,
        };
        let name_matters = ssl.verification() == Verification::Name;
        Ok(Self {
            provider,
            given,
            authority,
            name_matters,
        })
    }

    fn is_given(&self, certificate: &CertificateDer<'_>) -> bool {
        self.given.iter().any(|given| given == certificate)
    }
}

fn authority(
    ssl: &Ssl,
    store: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    let provider = Arc::clone(provider);
    let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider);
    if let Some(path) = &ssl.revoked {
        let lists = CertificateRevocationListDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let lists = lists.map_err(|error| unread(path, "sslcrl", error, "is not in PEM"))?;
        builder = builder.with_crls(lists);
    }
    builder.build().map_err(|error| error.to_string())
}

fn store(roots: &Roots, given: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::File(path) => {
            for certificate in given {
                let added = store.add(certificate.clone());
                added.map_err(|error| format!("sslrootcert {}: {error}", path.display()))?;
            }
        }
        Roots::Platform => {
            // One odd CA of a hundred is no reason to do without the others.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(
                    "the platform has no CA certificates: install them (often a package called \
                    ca-certificates), or name a file by sslrootcert"
                        .to_owned(),
                );
            }
        }
    }
    Ok(store)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        let Some(authority) = &self.authority else {
            return Ok(ServerCertVerified::assertion());
        };
        match authority.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The chain is looked at first: only the name is wrong.
            Err(RustlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name_matters => Ok(ServerCertVerified::assertion()),
            Err(RustlsError::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.is_given(end_entity) => {
                let given = OtherError(Arc::new(GivenAsCa));
                Err(CertificateError::Other(given).into())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A line that nobody else can read.
#[derive(Debug)]
pub(crate) struct Encrypted<S>(TlsStream<S>);

impl<S> Encrypted<S> {
    /// The server's certificate as both sides know it, for `tls-server-end-point` of RFC 5929: its hash, by the
    /// algorithm that its signature uses.
    pub(crate) fn end_point(&self) -> Option<Vec<u8>> {
        let certificate = self.0.get_ref().1.peer_certificates()?.first()?;
        let algorithm = hash_of_signature(certificate)?;
        Some(digest::digest(algorithm, certificate).as_ref().to_vec())
    }
}

/// `None` for signatures without a hash of their own, such as those of Ed25519: RFC 5929 defines nothing for them, and
/// Postgres cannot bind to them either.
fn hash_of_signature(certificate: &[u8]) -> Option<&'static digest::Algorithm> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    match signature_algorithm(certificate)? {
        // MD5 and SHA-1 are too weak to bind with: the RFC has SHA-256 in their place.
        [prefix @ .., 4 | 5 | 11] if prefix == RSA => Some(&digest::SHA256),
        [prefix @ .., 12] if prefix == RSA => Some(&digest::SHA384),
        [prefix @ .., 13] if prefix == RSA => Some(&digest::SHA512),
        [prefix @ .., 1] if prefix == ECDSA => Some(&digest::SHA256),
        [prefix @ .., 3, 2] if prefix == ECDSA => Some(&digest::SHA256),
        [prefix @ .., 3, 3] if prefix == ECDSA => Some(&digest::SHA384),
        [prefix @ .., 3, 4] if prefix == ECDSA => Some(&digest::SHA512),
        _ => None,
    }
}

/// The object identifier of the algorithm by which a certificate is signed. In DER it is
/// `SEQUENCE { to be signed SEQUENCE, algorithm SEQUENCE { identifier, .. }, .. }`.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const IDENTIFIER: u8 = 0x06;
    let (certificate, _) = element(SEQUENCE, certificate)?;
    let (_, rest) = element(SEQUENCE, certificate)?;
    let (algorithm, _) = element(SEQUENCE, rest)?;
    Some(element(IDENTIFIER, algorithm)?.0)
}

/// The content of the first element of DER, if it has this tag, and what follows it.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first & 0x7f {
        short if first & 0x80 == 0 => (usize::from(short), rest),
        digits @ 1..=4 => {
            let (length, rest) = rest.split_at_checked(digits.into())?;
            (
                length
                    .iter()
                    .fold(0, |sum, digit| sum << 8 | usize::from(*digit)),
                rest,
            )
        }
        _ => return None,
    };
    (*found == tag).then(|| rest.split_at_checked(length))?
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    /// A server that hangs up without a word of TLS has hung up. Its messages say themselves where they end, so
    /// none can be cut short unseen.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buf) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            polled => polled,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
        SignatureAlgorithm,
    };

    use super::*;

    fn signed_by(algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(["db".to_owned()]).unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_is_bound_by_the_hash_of_its_signature() {
        for (algorithm, hash) in [
            (&PKCS_ECDSA_P256_SHA256, Some(&digest::SHA256)),
            (&PKCS_ECDSA_P384_SHA384, Some(&digest::SHA384)),
            (&PKCS_ED25519, None),
        ] {
            assert_eq!(hash_of_signature(&signed_by(algorithm)), hash);
        }
    }

    #[test]
    fn what_is_no_certificate_binds_nothing() {
        let whole = signed_by(&PKCS_ECDSA_P256_SHA256);
        for cut in 0..whole.len() {
            assert_eq!(hash_of_signature(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(hash_of_signature(&[0x30, 0x85, 1, 1, 1, 1, 1]), None);
        assert_eq!(hash_of_signature(&[0x30, 0x80, 0x30]), None);
    }

    fn ssl(own: (&Path, &Path)) -> Ssl {
        Ssl {
            mode: SslMode::Require,
            direct: false,
            roots: None,
            revoked: None,
            own: Some((own.0.to_owned(), own.1.to_owned())),
            sni: true,
            oldest: Version(2),
            newest: Version(3),
        }
    }

    #[test]
    fn files_that_are_no_key_and_no_certificate_are_named_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        let problem = || Tls::new(&ssl((&cert, &key))).unwrap_err();
        assert!(problem().contains("cert.pem"), "{}", problem());
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["me".to_owned()]).unwrap();
        std::fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
        for content in [
            "S3CRET",
            "-----BEGIN PRIVATE KEY-----\nS3CRET\n-----END PRIVATE KEY-----\n",
        ] {
            std::fs::write(&key, content).unwrap();
            assert!(problem().contains("key.pem"), "{}", problem());
            assert!(!problem().contains("S3CR"), "{}", problem());
        }
        // A key whose line breaks were lost, in the place of the certificates. An error of PEM would repeat it in bytes.
        let certificate = std::fs::read_to_string(&cert).unwrap();
        std::fs::write(&cert, "-----BEGIN PRIVATE KEY-----S3CRET\n").unwrap();
        let bytes = format!("{:?}", b"S3CRET");
        assert!(problem().contains("cert.pem"), "{}", problem());
        assert!(
            !problem().contains(bytes.trim_matches(['[', ']'])),
            "{}",
            problem()
        );
        std::fs::write(&cert, certificate).unwrap();
        std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert!(
            problem().contains("key.pem"),
            "a key of another certificate: {}",
            problem()
        );
        std::fs::write(&key, pair.serialize_pem()).unwrap();
        let tls = Tls::new(&ssl((&cert, &key))).unwrap().unwrap();
        assert!(!format!("{tls:?}").contains("PRIVATE"));
    }

    #[test]
    fn renewed_files_hold_once_they_belong_together() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        let renew = |name: &str| {
            let pair = KeyPair::generate().unwrap();
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            (
                params.self_signed(&pair).unwrap().pem(),
                pair.serialize_pem(),
            )
        };
        let old = renew("old");
        std::fs::write(&cert, old.0).unwrap();
        std::fs::write(&key, old.1).unwrap();
        let tls = Tls::new(&ssl((&cert, &key))).unwrap().unwrap();
        let before = tls.config();
        assert!(Arc::ptr_eq(&before, &tls.config()));
        let new = renew("a-much-longer-name");
        std::fs::write(&cert, new.0).unwrap();
        assert!(
            Arc::ptr_eq(&before, &tls.config()),
            "the key is still the old one"
        );
        std::fs::write(&key, new.1).unwrap();
        assert!(!Arc::ptr_eq(&before, &tls.config()));
    }
}
