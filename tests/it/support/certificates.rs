//! Certificates that a test makes, and a server that uses them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

use super::patience::eventually;
use super::tenant::Tenant;

/// The name that the server's certificates are for. No name server knows it: tests say its address as well.
pub(crate) const HOST: &str = "db.test";

/// A certificate with its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A CA, with its certificate in a file.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: String,
    folder: TempDir,
}

impl Authority {
    /// One that nobody else has.
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Self::called(&format!("CA {number}"))
    }

    /// One of this name.
    pub(crate) fn called(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), &certificate).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
            folder,
        }
    }

    /// Its certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// For the server: for [`HOST`], and for 127.0.0.1.
    pub(crate) fn for_server(&self) -> Pair {
        self.sign(server())
    }

    /// The same, but it is over.
    pub(crate) fn expired(&self) -> Pair {
        let mut params = server();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    /// For the server, but it is marked as a CA.
    pub(crate) fn marked_as_ca(&self) -> Pair {
        let mut params = server();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.sign(params)
    }

    /// For a role, which its common name tells.
    pub(crate) fn for_role(&self, role: &str) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, role);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A file that revokes the server's certificates, or somebody else's.
    pub(crate) fn revoking(&self, the_server_s: bool) -> PathBuf {
        let serial = if the_server_s { SERIAL } else { SERIAL + 1 };
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap().pem().unwrap();
        let path = self.folder.path().join(format!("revoked-{serial}.pem"));
        std::fs::write(&path, list).unwrap();
        path
    }
}

const SERIAL: u64 = 4711;

fn server() -> CertificateParams {
    let mut params = CertificateParams::new([HOST.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.serial_number = Some(SerialNumber::from(SERIAL));
    params
}

impl Pair {
    /// For the server, signed by itself; marked as a CA, as `openssl req -x509` does, or not.
    pub(crate) fn self_signed(is_ca: bool) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = server();
        params.is_ca = match is_ca {
            true => IsCa::Ca(BasicConstraints::Unconstrained),
            false => IsCa::ExplicitNoCa,
        };
        Self {
            certificate: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// Writes it into a folder, over what is there.
    pub(crate) fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join("own.pem"), folder.join("own.key"));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (certificate, key)
    }
}

/// Gives the tenant's server, which nobody else uses, a certificate and rules for whom to let in (its `pg_hba.conf`); its
/// owner comes in by whatever way. Whose clients' certificates it trusts is the CA that comes along.
pub(crate) async fn secure(tenant: &Tenant, pair: &Pair, clients: &Authority, rules: &str) {
    let rules = format!("local all all trust\nhost all postgres all scram-sha-256\n{rules}\n");
    for (file, content) in [
        ("server.crt", &pair.certificate),
        ("server.key", &pair.key),
        ("clients.pem", &clients.certificate),
        ("pg_hba.conf", &rules),
    ] {
        // The server writes its own files, wherever it is.
        let keep = "SELECT lo_from_bytea(0, convert_to($1, 'UTF8'))";
        let kept = tenant.admin.query_one(keep, &[content]).await.unwrap();
        let kept: u32 = kept.get(0);
        let write = "SELECT lo_export($1, $2)";
        tenant.admin.query(write, &[&kept, &file]).await.unwrap();
    }
    tenant
        .sql("COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; chmod 600 server.key'")
        .await;
    tenant
        .sql("ALTER SYSTEM SET ssl_ca_file = 'clients.pem'")
        .await;
    tenant.sql("ALTER SYSTEM SET ssl = on").await;
    reload(tenant).await;
}

/// Has the server read its files again, and waits until new sessions know them.
async fn reload(tenant: &Tenant) {
    let asked = "SELECT clock_timestamp()::text";
    let asked: String = tenant.admin.query_one(asked, &[]).await.unwrap().get(0);
    tenant.sql("SELECT pg_reload_conf()").await;
    eventually("the server has read its files again", async || {
        let session = tenant.another_admin().await.unwrap();
        let loaded = format!("SELECT pg_conf_load_time() > '{asked}'::timestamptz");
        session.query_one(&loaded, &[]).await.unwrap().get(0)
    })
    .await;
}
