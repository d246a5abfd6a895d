//! A PgBouncer of its own for a test, before the server of a tenant.
//!
//! It is Debian's package, or whatever is on PATH. Where there is none, the test is skipped and says so; with
//! `PARTITIONED_POOL_PGBOUNCER=required` that is a failure, so that CI cannot skip it.
//!
//! As with a local Postgres, a small shell runs it and ends it when its input ends: whichever way this process goes,
//! nothing is left over. It refuses to run as root, and is then run as somebody else.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::postgres::free_port;
use crate::postgres::local::User;

use super::patience::LONG;
use super::tenant::Tenant;

const REQUIRED: &str = "PARTITIONED_POOL_PGBOUNCER";

/// `$1` is the program, `$2` the folder.
const KEEPER: &str = r#"
"$1" "$2/pgbouncer.ini" >"$2/log" 2>&1 </dev/null & pooler=$!
read -r _
kill "$pooler" 2>/dev/null
wait "$pooler"
"#;

/// Somebody may take the free port before the pooler does; three times in a row is no accident.
const ATTEMPTS: usize = 3;
/// What is shown of its log when a test fails.
const LAST_LINES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A running PgBouncer. Dropping it ends it.
pub(crate) struct PgBouncer {
    keeper: Child,
    folder: TempDir,
    port: u16,
    tenant: String,
}

/// Settings of `pgbouncer.ini`.
type Ini<'a> = &'a [(&'a str, &'a str)];

impl PgBouncer {
    /// One before the server of this tenant, with these settings beside `pool_mode`; `None` where there is no PgBouncer.
    ///
    /// # Panics
    /// If it does not start, or if it must not be skipped.
    pub(crate) async fn start(tenant: &Tenant, mode: &str, ini: Ini<'_>) -> Option<Self> {
        let program = program()?;
        for _ in 0..ATTEMPTS {
            let mut pooler = Self::spawn(&program, tenant, mode, ini);
            if pooler.is_up().await {
                return Some(pooler);
            }
            eprintln!("PgBouncer did not start: {}", pooler.log());
        }
        panic!("PgBouncer does not start");
    }

    fn spawn(program: &PathBuf, tenant: &Tenant, mode: &str, ini: Ini<'_>) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("partitioned-pool-pgbouncer-")
            .tempdir()
            .unwrap();
        let port = free_port();
        let (path, name) = (folder.path(), &tenant.name);
        fs::write(path.join("users"), format!("\"{name}\" \"{name}\"\n")).unwrap();
        fs::write(
            path.join("pgbouncer.ini"),
            text(tenant, port, path, mode, ini),
        )
        .unwrap();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", KEEPER, "keeper"])
            .arg(program)
            .arg(path);
        command.current_dir("/").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is for us; the keeper sees our end, and then ends the pooler.
        command.process_group(0);
        if path.metadata().unwrap().uid() == 0 {
            let user = User::for_root().unwrap();
            for file in ["users", "pgbouncer.ini", ""] {
                chown(path.join(file), Some(user.uid()), Some(user.gid())).unwrap();
            }
            command.uid(user.uid()).gid(user.gid());
        }
        let keeper = command.spawn().unwrap();
        Self {
            keeper,
            folder,
            port,
            tenant: name.clone(),
        }
    }

    async fn is_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < LONG {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && self.log().contains("process up")
            {
                return true;
            }
            if self.log().contains("FATAL") {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        false
    }

    /// What it has told its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The tenant's URL through it.
    pub(crate) fn url(&self, tenant: &Tenant) -> String {
        tenant.url_at("127.0.0.1", self.port)
    }

    /// Says something to its console, as its administrator.
    pub(crate) async fn command(&self, sql: &str) {
        let (name, port) = (&self.tenant, self.port);
        let url = format!("postgres://{name}:{name}@127.0.0.1:{port}/pgbouncer");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.simple_query(sql).await.unwrap();
        drop(client);
        drop(connection.await);
    }
}

fn text(tenant: &Tenant, port: u16, folder: &std::path::Path, mode: &str, ini: Ini<'_>) -> String {
    let mut text = format!(
        "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = md5\nauth_file = {}\nadmin_users = {}\npool_mode = {mode}\n",
        tenant.host(),
        tenant.port(),
        folder.join("users").display(),
        tenant.name,
    );
    for (key, value) in ini {
        let _ = writeln!(text, "{key} = {value}");
    }
    text
}

/// Where it is; or `None`, said aloud and past the capture of the test's output, where that is allowed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders
        .map(|folder| folder.join("pgbouncer"))
        .find(|file| file.is_file());
    if found.is_none() {
        let missing = "pgbouncer is not on PATH (Debian and Ubuntu: apt-get install pgbouncer)";
        let required = std::env::var(REQUIRED).is_ok_and(|value| value == "required");
        assert!(!required, "{missing}, and {REQUIRED} is required");
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::SeqCst) {
            let said = format!("SKIPPED what needs PgBouncer: {missing}\n");
            std::io::stderr().write_all(said.as_bytes()).unwrap();
        }
    }
    found
}

/// The end of its input is the order to end.
impl Drop for PgBouncer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("the end of PgBouncer's log:\n{}", last.join("\n"));
        }
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}
