//! A throw-away cluster of a local Postgres's binaries.
//!
//! A small shell, the keeper, runs the server and owns its folder. It reads orders from its input, which this
//! process holds open; when the input ends, however this process ended, it stops the server and removes the folder.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::source::{Choice, Source, Why};
use super::{Found, Keeper, Want, free_port, owner_url, probe, random};

/// Somebody may take the free port before the server does; three times in a row is no accident.
const ATTEMPTS: usize = 3;
/// A fast shutdown takes less than a second; after this the folder is removed under the server, which ends it.
const END: Duration = Duration::from_secs(10);

/// `$1` is the folder of the binaries, `$2` that of the cluster; what follows goes to the server.
const KEEPER: &str = r#"
bin=$1 folder=$2 server=
shift 2
halt() {
    [ -z "$server" ] || { kill -INT "$server" 2>/dev/null; wait "$server"; server=; }
}
make() {
    "$bin/initdb" --pgdata="$folder/data" --username=postgres --pwfile="$folder/password" --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C --no-sync >>"$folder/log" 2>&1 && rm "$folder/password"
}
while read -r order port; do
    case $order in
        make) if make; then echo yes; else echo no; fi ;;
        # The password stays in what the copy was told to follow.
        copy) if PGPASSWORD=$(cat "$folder/password") "$bin/pg_basebackup" --pgdata="$folder/data" \
            --dbname="host=127.0.0.1 port=$port user=postgres" --wal-method=stream --checkpoint=fast \
            --write-recovery-conf --no-sync >>"$folder/log" 2>&1 && rm "$folder/password"; then echo yes; else echo no; fi ;;
        start) "$bin/postgres" -D "$folder/data" "$@" -c "port=$port" >>"$folder/log" 2>&1 </dev/null & server=$!; echo yes ;;
        stop) halt; echo yes ;;
        # Naming the jobs lets the shell notice that one has ended.
        alive) jobs >/dev/null; if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then echo yes; else echo no; fi ;;
    esac
done
halt
rm -rf "$folder"
"#;

/// The folders in which server binaries usually are: what PATH says, what pg_config says, then the newest version.
pub(super) fn usual_folders() -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .collect();
    folders.extend(bindir());
    for (parent, prefix, below) in [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/usr/local", "pgsql", "bin"),
        ("/opt/homebrew/opt", "postgresql", "bin"),
        ("/usr/local/opt", "postgresql", "bin"),
        ("/Applications/Postgres.app/Contents/Versions", "", "bin"),
    ] {
        folders.extend(versioned(parent, prefix, below));
    }
    folders
}

fn bindir() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(
        String::from_utf8(output.stdout).ok()?.trim_end(),
    ))
}

fn versioned(parent: &str, prefix: &str, below: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut folders: Vec<_> = named.map(|entry| entry.path()).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(digits(folder)));
    folders
        .into_iter()
        .map(|folder| folder.join(below))
        .collect()
}

/// The version in a folder's name, so that 17 is above 9.
fn digits(folder: &Path) -> u32 {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// The first folder with a server of the wanted version.
fn binaries(folders: &[PathBuf], wanted: Option<u32>) -> Result<PathBuf, Why> {
    let mut found = Vec::new();
    for folder in folders {
        // A link on PATH leads to the folder where the other binaries are.
        let Ok(server) = folder.join("postgres").canonicalize() else {
            continue;
        };
        let Some(folder) = server
            .parent()
            .filter(|folder| folder.join("initdb").exists())
        else {
            continue;
        };
        match (major(&server), wanted) {
            (Some(major), Some(wanted)) if major != wanted => found.push(major),
            (Some(_), _) => return Ok(folder.to_owned()),
            (None, _) => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    match wanted {
        Some(wanted) if !found.is_empty() => Err(Why::WrongVersion { wanted, found }),
        _ => Err(Why::Absent("no folder has both postgres and initdb: neither PATH, nor pg_config, nor the usual ones".to_owned())),
    }
}

/// From a line such as `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major(server: &Path) -> Option<u32> {
    let output = Command::new(server).arg("--version").output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    let version = line
        .split(' ')
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))?;
    version
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// The system user that a server runs as when we are root, as which it refuses to run.
pub(crate) struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl User {
    /// `postgres`, which Debian's package makes; or `nobody`, which every system has.
    pub(crate) fn for_root() -> Result<Self, String> {
        let users = std::fs::read_to_string("/etc/passwd")
            .map_err(|error| format!("cannot read /etc/passwd: {error}"))?;
        let user = ["postgres", "nobody"]
            .iter()
            .find_map(|name| Self::read(&users, name));
        user.ok_or_else(|| {
            "it does not run as root, and there is no user postgres or nobody to run it as"
                .to_owned()
        })
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn gid(&self) -> u32 {
        self.gid
    }

    fn read(users: &str, name: &str) -> Option<Self> {
        let line = users
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut fields = line.split(':').skip(1);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Self {
            name: name.to_owned(),
            uid,
            gid,
        })
    }
}

/// The folder of a cluster, and the user who owns it if that is not us.
struct Home {
    folder: TempDir,
    user: Option<User>,
}

impl Home {
    fn new(password: &str) -> Result<Self, String> {
        let cannot = |error: std::io::Error| {
            format!(
                "cannot make a folder in {}: {error}",
                std::env::temp_dir().display()
            )
        };
        let folder = tempfile::Builder::new()
            .prefix("partitioned-pool-postgres-")
            .tempdir()
            .map_err(cannot)?;
        std::fs::write(folder.path().join("password"), password).map_err(cannot)?;
        let is_root = folder.path().metadata().map_err(cannot)?.uid() == 0;
        let user = if is_root {
            Some(User::for_root()?)
        } else {
            None
        };
        if let Some(user) = &user {
            for path in [folder.path().join("password"), folder.path().to_owned()] {
                chown(path, Some(user.uid), Some(user.gid)).map_err(cannot)?;
            }
        }
        Ok(Self { folder, user })
    }

    fn last_words(&self) -> String {
        last_lines(&std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default())
    }
}

/// The end of a log, on one line.
pub(super) fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(4)..].join(" / ")
}

/// The shell that runs the server, and the pipes to it.
struct Shell {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    home: Home,
}

impl Shell {
    fn spawn(bin: &Path, home: Home, settings: &[String]) -> Result<Self, String> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", KEEPER, "keeper"])
            .arg(bin)
            .arg(home.folder.path());
        command.args(["-c", "listen_addresses=127.0.0.1", "-c"]);
        command
            .arg(format!(
                "unix_socket_directories={}",
                home.folder.path().display()
            ))
            .args(settings);
        command
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // Ctrl-C is for us; the keeper sees our end, and then ends the server in order.
        command.process_group(0);
        if let Some(user) = &home.user {
            command.uid(user.uid).gid(user.gid);
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot run /bin/sh: {error}"))?;
        let orders = child.stdin.take();
        let answers = BufReader::new(
            child
                .stdout
                .take()
                .expect("bug: the output was made a pipe above"),
        );
        Ok(Self {
            child,
            orders,
            answers,
            home,
        })
    }

    /// Gives an order and waits for the answer, yes or no.
    fn order(&mut self, order: &str) -> Result<bool, String> {
        let gone =
            |error: std::io::Error| format!("the shell that keeps the cluster is gone: {error}");
        let orders = self
            .orders
            .as_mut()
            .expect("bug: only drop takes the pipe out");
        writeln!(orders, "{order}").map_err(gone)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(gone)?;
        match answer.trim_end() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err("the shell that keeps the cluster is gone".to_owned()),
        }
    }

    fn make(&mut self) -> Result<(), String> {
        if self.order("make")? {
            Ok(())
        } else {
            Err(format!("initdb failed: {}", self.home.last_words()))
        }
    }

    fn copy(&mut self, port: u16) -> Result<(), String> {
        if self.order(&format!("copy {port}"))? {
            Ok(())
        } else {
            Err(format!("pg_basebackup failed: {}", self.home.last_words()))
        }
    }

    fn has_ended(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < END {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// The end of the orders is the order to end. The folder's own drop removes what may be left of it.
impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.orders.take());
        if !self.has_ended() {
            eprintln!(
                "the Postgres in {} does not stop; its folder is removed all the same",
                self.home.folder.path().display()
            );
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// A cluster that is stopped and removed when it is dropped.
pub(super) struct Cluster {
    shell: Arc<Mutex<Shell>>,
    port: u16,
}

pub(super) async fn start(choice: &Choice, want: &Want) -> Result<Found, Why> {
    let bin = binaries(&choice.folders, want.version)?;
    let password = format!("{:016x}", random());
    let home = Home::new(&password).map_err(Why::Failed)?;
    let user = home.user.as_ref().map(|user| user.name.clone());
    let shell = Shell::spawn(&bin, home, &want.arguments()).map_err(Why::Failed)?;
    let made = Cluster::start(shell, &password, Shell::make).await;
    Ok(found(made.map_err(Why::Failed)?, bin, user, &password))
}

/// A standby of the cluster on `port`, of the same binaries.
pub(super) async fn standby(
    port: u16,
    bin: PathBuf,
    password: &str,
    want: &Want,
) -> Result<Found, Why> {
    let home = Home::new(password).map_err(Why::Failed)?;
    let user = home.user.as_ref().map(|user| user.name.clone());
    let shell = Shell::spawn(&bin, home, &want.arguments()).map_err(Why::Failed)?;
    let copied = Cluster::start(shell, password, move |shell| shell.copy(port)).await;
    Ok(found(copied.map_err(Why::Failed)?, bin, user, password))
}

fn found(cluster: Cluster, bin: PathBuf, user: Option<String>, password: &str) -> Found {
    let port = cluster.port;
    let url = owner_url("127.0.0.1", port, password);
    let config = url.parse().expect("bug: a URL made here can be read");
    Found {
        keeper: Keeper::Cluster(cluster),
        source: Source::Local {
            folder: bin,
            user,
            port,
        },
        config,
        url,
    }
}

impl Cluster {
    /// Has the shell make the cluster, and starts it on a free port; on another if somebody took that one first.
    async fn start(
        shell: Shell,
        password: &str,
        make: impl FnOnce(&mut Shell) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, String> {
        let mut cluster = Self {
            shell: Arc::new(Mutex::new(shell)),
            port: free_port(),
        };
        cluster.with_shell(make).await?;
        let mut attempt = 1;
        loop {
            cluster.start_again().await?;
            let config = owner_url("127.0.0.1", cluster.port, password)
                .parse()
                .expect("bug: a URL made here can be read");
            match probe::until_ready(&config, || cluster.ended()).await {
                Ok(_) => return Ok(cluster),
                Err(reason) if attempt == ATTEMPTS || !is_taken(cluster.port) => {
                    return Err(reason);
                }
                Err(_) => cluster.port = free_port(),
            }
            attempt += 1;
        }
    }

    async fn with_shell<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Shell) -> T + Send + 'static,
    ) -> T {
        let shell = Arc::clone(&self.shell);
        let work = move || work(&mut shell.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work)
            .await
            .expect("bug: talking to the shell does not panic")
    }

    /// If the server has ended: the end of its log.
    pub(super) async fn ended(&self) -> Option<String> {
        self.with_shell(|shell| match shell.order("alive") {
            Ok(true) => None,
            Ok(false) => Some(shell.home.last_words()),
            Err(reason) => Some(reason),
        })
        .await
    }

    pub(super) async fn stop(&self) -> Result<(), String> {
        self.with_shell(|shell| shell.order("stop")).await.map(drop)
    }

    pub(super) async fn start_again(&self) -> Result<(), String> {
        let order = format!("start {}", self.port);
        self.with_shell(move |shell| shell.order(&order))
            .await
            .map(drop)
    }
}

fn is_taken(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_err()
}
