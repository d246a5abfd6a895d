//! The README's quick start, word for word: its commands in an empty folder, its program, what that prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tokio::net::lookup_host;

use crate::support::certificates::{Authority, HOST, secure};
use crate::support::server::on_own_servers;
use crate::support::tenant::Tenant;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The block of the README behind a mark.
fn block(what: &str) -> String {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let mark = format!("<!-- quick start: {what} -->\n```");
    let behind = readme.split(&mark).nth(1);
    let (_language, code) = behind
        .unwrap_or_else(|| panic!("no {mark}"))
        .split_once('\n')
        .unwrap();
    let (code, _rest) = code.split_once("\n```").unwrap();
    code.to_owned()
}

/// Where the quick start is followed. Always the same folder, so that what was built there once is not built again.
struct Desk {
    project: PathBuf,
}

impl Desk {
    /// An empty folder in which the README's commands were run, with its program.
    fn new() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quickstart");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let commands = block("commands");
        let beside = "../partitioned-pool";
        assert!(commands.contains(beside), "{commands}");
        let project = folder.join("shop");
        let desk = Self { project };
        // The checkout, wherever it is.
        let mut shell = desk.command("sh", &["-euc", &commands.replace(beside, ROOT)]);
        succeeded(&shell.current_dir(&folder).output().unwrap());
        // A service has the newest versions; the test has those that are there.
        fs::copy(
            Path::new(ROOT).join("Cargo.lock"),
            desk.project.join("Cargo.lock"),
        )
        .unwrap();
        fs::write(desk.project.join("src/main.rs"), patient(&block("program"))).unwrap();
        desk
    }

    /// With the target folder of the tests, and without a network.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut command = Command::new(program);
        command.args(arguments).env("CARGO_TARGET_DIR", target);
        command.env("CARGO_NET_OFFLINE", "true");
        // What cargo tells a test of its package would have build scripts run again, and then all that needs them.
        let told =
            |name: &str| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names
            .filter(|name| told(name))
            .for_each(|name| _ = command.env_remove(name));
        command
    }

    fn cargo(&self, what: &str) -> Command {
        let mut command = self.command(env!("CARGO"), &[what, "--quiet"]);
        command.current_dir(&self.project);
        command
    }

    /// What the program prints, or why it does not start.
    fn run(&self, url: String) -> Result<String, String> {
        let ran = self.cargo("run").env("DATABASE_URL", url).output().unwrap();
        match ran.status.success() {
            true => Ok(succeeded(&ran)),
            false => Err(String::from_utf8(ran.stderr).unwrap()),
        }
    }
}

fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The deadlines of a service are not those of a machine that runs tests.
fn patient(program: &str) -> String {
    let (mut patient, times) = (program.to_owned(), ["from_secs(1)", "from_secs(5)"]);
    for time in times {
        assert!(program.contains(time), "no {time} in:\n{program}");
        patient = patient.replace(time, "from_secs(60)");
    }
    patient
}

/// The README's URL, for the tenant and its server's own CA.
async fn url(tenant: &Tenant, ca: &Authority) -> String {
    let run = block("run");
    let url = run
        .strip_prefix("DATABASE_URL='")
        .and_then(|rest| rest.strip_suffix("' cargo run"));
    let (_address, query) = url
        .unwrap_or_else(|| panic!("{run}"))
        .split_once('?')
        .unwrap();
    assert_eq!(query, "sslmode=verify-full");
    let mut at = lookup_host((tenant.host(), tenant.port())).await.unwrap();
    let (url, at) = (tenant.url_at(HOST, tenant.port()), at.next().unwrap().ip());
    let ca = ca.file();
    format!("{url}?hostaddr={at}&{query}&sslrootcert={}", ca.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_the_readme_has_a_running_program() {
    let desk = Desk::new();
    succeeded(&desk.cargo("build").output().unwrap());
    let expected = block("output") + "\n";
    on_own_servers(&[("max_connections", "100")], async |_, tenant| {
        let ca = Authority::new();
        secure(
            tenant,
            &ca.for_server(),
            &ca,
            "hostssl all all all scram-sha-256",
        )
        .await;
        let url = url(tenant, &ca).await;
        assert_eq!(desk.run(url.clone()).as_deref(), Ok(expected.as_str()));
        // It was TLS that let it in.
        let open = desk.run(url.replace("verify-full", "disable")).unwrap_err();
        assert!(open.contains("SQLSTATE 28000"), "{open}");
    })
    .await;
}
