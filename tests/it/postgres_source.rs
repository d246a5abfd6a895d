//! The Postgres of the tests is itself tested: where it is found, what it says, and that nothing is left over.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use crate::postgres::{self, Choice, Kind, Postgres, Source, Unavailable, Want, Why};

/// Nothing listens on port 1, so the engine learns at once that it cannot pull this.
const NO_IMAGE: &str = "127.0.0.1:1/no-such-image:1";

fn read(variables: &[(&str, &str)]) -> Result<Choice, Unavailable> {
    Choice::read(
        variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// The choice of the environment, narrowed to one source.
fn only(kind: Kind) -> Choice {
    Choice {
        only: Some(kind),
        ..Choice::from_env().unwrap()
    }
}

/// A server of one source; or none, said aloud, where the machine has no such source. Whoever forces a
/// source by the environment sees the failure instead.
async fn start_or_skip(kind: Kind, want: Want) -> Option<Postgres> {
    let error = match postgres::start_as(&only(kind), &want).await {
        Ok(server) => return Some(server),
        Err(error) => error,
    };
    let forced = Choice::from_env().unwrap().only == Some(kind);
    assert!(!forced && is_missing(&error), "{error}");
    eprintln!("SKIPPED, {kind} is not to be had here: {error}");
    None
}

/// Whether this machine has the source; found out once, by starting a server.
async fn is_here(kind: Kind) -> bool {
    static DOCKER: OnceCell<bool> = OnceCell::const_new();
    static LOCAL: OnceCell<bool> = OnceCell::const_new();
    let known = if kind == Kind::Docker {
        &DOCKER
    } else {
        &LOCAL
    };
    *known
        .get_or_init(async || start_or_skip(kind, Want::default()).await.is_some())
        .await
}

fn is_missing(error: &Unavailable) -> bool {
    let Unavailable::NoServer { refusals, .. } = error else {
        return false;
    };
    refusals.iter().all(|refusal| match &refusal.why {
        Why::Absent(_) | Why::WrongVersion { .. } => true,
        Why::Failed(reason) => reason.contains("cannot pull"),
    })
}

async fn connect(server: &Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

fn container_of(server: &Postgres) -> String {
    let Source::Docker { container, .. } = server.source() else {
        panic!("not a container: {server:?}")
    };
    container.clone()
}

async fn is_there(container: &str) -> bool {
    let engine = testcontainers::core::client::docker_client_instance()
        .await
        .unwrap();
    engine.inspect_container(container, None).await.is_ok()
}

fn listens(server: &str) -> bool {
    std::net::TcpStream::connect(server).is_ok()
}

fn address(server: &Postgres) -> String {
    format!("{}:{}", server.host(), server.port())
}

#[test]
fn without_variables_docker_comes_before_local_binaries() {
    let choice = read(&[]).unwrap();
    assert_eq!(choice.order(), [Kind::Docker, Kind::Local]);
    assert_eq!(choice.image(None), "postgres:17");
    assert_eq!(choice.image(Some(15)), "postgres:15");
}

#[test]
fn a_named_server_is_the_only_one_tried() {
    let choice = read(&[("PARTITIONED_POOL_PG_URL", "postgres://u:p@h/d")]).unwrap();
    assert_eq!(choice.order(), [Kind::Url]);
}

#[test]
fn a_forced_source_is_the_only_one_tried() {
    let named = ("PARTITIONED_POOL_PG_URL", "postgres://u:p@h/d");
    for (word, kind) in [
        ("url", Kind::Url),
        ("docker", Kind::Docker),
        ("local", Kind::Local),
    ] {
        let choice = read(&[named, ("PARTITIONED_POOL_PG_SOURCE", word)]).unwrap();
        assert_eq!(choice.order(), [kind]);
    }
}

#[test]
fn images_are_chosen_by_the_wanted_version() {
    let choice = read(&[
        ("PARTITIONED_POOL_PG_IMAGE", "mine:1"),
        ("PARTITIONED_POOL_PG_IMAGE_15", "old:2"),
    ])
    .unwrap();
    assert_eq!(choice.image(None), "mine:1");
    assert_eq!(choice.image(Some(15)), "old:2");
    assert_eq!(choice.image(Some(16)), "postgres:16");
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let choice = read(&[
        ("PARTITIONED_POOL_PG_URL", ""),
        ("PARTITIONED_POOL_PG_SOURCE", " "),
    ])
    .unwrap();
    assert_eq!(choice.order(), [Kind::Docker, Kind::Local]);
}

#[test]
fn a_variable_that_cannot_be_understood_is_an_error_that_names_it() {
    let source = read(&[("PARTITIONED_POOL_PG_SOURCE", "podman")])
        .err()
        .unwrap()
        .to_string();
    assert_eq!(
        source,
        "PARTITIONED_POOL_PG_SOURCE must be url, docker or local; it has `podman`"
    );
    let image = read(&[("PARTITIONED_POOL_PG_IMAGE_NEW", "x:1")])
        .err()
        .unwrap()
        .to_string();
    assert!(
        image.starts_with("PARTITIONED_POOL_PG_IMAGE_NEW must end in a major version"),
        "{image}"
    );
}

#[tokio::test]
async fn what_is_found_is_told_in_one_line_without_its_password() {
    let server = postgres::start(Want::default().setting("max_connections", 40))
        .await
        .unwrap();
    println!("{}", server.describe());
    let line = server.describe();
    assert!(
        line.starts_with(&format!(
            "postgres {} from {}",
            server.version(),
            server.source()
        )),
        "{line}"
    );
    assert!(
        line.contains(&address(&server)) && !line.contains('\n'),
        "{line}"
    );
    assert!(
        server
            .version()
            .starts_with(&format!("{}.", server.major()))
    );
    let config: tokio_postgres::Config = server.url().parse().unwrap();
    let password = String::from_utf8(config.get_password().unwrap().to_vec()).unwrap();
    for text in [
        format!("{server:?}"),
        server.describe(),
        server.source().to_string(),
    ] {
        assert!(!text.contains(&password), "{text}");
    }
}

#[tokio::test]
async fn a_container_keeps_its_port_and_its_data_over_a_restart_and_goes_when_dropped() {
    let Some(server) =
        start_or_skip(Kind::Docker, Want::default().setting("max_connections", 33)).await
    else {
        return;
    };
    println!("{}", server.describe());
    assert_eq!(server.max_connections(), 33);
    survives_a_restart(&server).await;
    let container = container_of(&server);
    assert!(is_there(&container).await);
    drop(server);
    assert!(!is_there(&container).await);
}

#[tokio::test]
async fn a_cluster_keeps_its_port_and_its_data_over_a_restart_and_goes_when_dropped() {
    let Some(server) =
        start_or_skip(Kind::Local, Want::default().setting("max_connections", 33)).await
    else {
        return;
    };
    println!("{}", server.describe());
    assert_eq!(server.max_connections(), 33);
    survives_a_restart(&server).await;
    let address = address(&server);
    let folder = connect(&server)
        .await
        .query_one("SHOW data_directory", &[])
        .await
        .unwrap()
        .get::<_, String>(0);
    assert!(listens(&address));
    drop(server);
    assert!(!listens(&address));
    assert!(!Path::new(&folder).exists(), "{folder} is left over");
}

async fn survives_a_restart(server: &Postgres) {
    let before = connect(server).await;
    before
        .batch_execute("CREATE TABLE kept (n int)")
        .await
        .unwrap();
    server.stop().await.unwrap();
    assert!(before.batch_execute("SELECT 1").await.is_err());
    assert!(
        tokio_postgres::connect(server.url(), tokio_postgres::NoTls)
            .await
            .is_err()
    );
    server.start().await.unwrap();
    connect(server)
        .await
        .batch_execute("SELECT n FROM kept")
        .await
        .unwrap();
    server.restart().await.unwrap();
    connect(server)
        .await
        .batch_execute("SELECT n FROM kept")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_wanted_version_is_what_the_server_says_it_is() {
    for major in [15, 17] {
        if let Some(server) = start_or_skip(Kind::Docker, Want::version(major)).await {
            assert_eq!(server.major(), major);
            println!("{}", server.describe());
        }
    }
}

#[tokio::test]
async fn an_image_of_another_version_is_refused() {
    if !is_here(Kind::Docker).await {
        return;
    }
    let image = only(Kind::Docker).image(None);
    let choice = Choice {
        images: [(9, image)].into(),
        ..only(Kind::Docker)
    };
    let error = postgres::start_as(&choice, &Want::version(9))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Testcontainers: Postgres 9 is wanted, and this is"),
        "{error}"
    );
    assert!(!error.may_skip(), "a forced source may not be skipped");
}

#[tokio::test]
async fn an_image_that_cannot_be_had_falls_to_local_binaries_and_says_so() {
    if !is_here(Kind::Local).await {
        return;
    }
    let choice = Choice {
        url: None,
        only: None,
        image: Some(NO_IMAGE.to_owned()),
        ..Choice::from_env().unwrap()
    };
    let server = postgres::start_as(&choice, &Want::default()).await.unwrap();
    assert_eq!(server.source().kind(), Kind::Local);
    let line = server.describe();
    println!("{line}");
    assert!(
        line.contains("; passed over Testcontainers (") && !line.contains('\n'),
        "{line}"
    );
    assert!(
        line.contains(NO_IMAGE) || line.contains("no Docker engine answers"),
        "{line}"
    );
}

#[tokio::test]
async fn an_image_that_cannot_be_had_is_an_error_when_docker_is_forced() {
    let choice = Choice {
        image: Some(NO_IMAGE.to_owned()),
        ..only(Kind::Docker)
    };
    let error = postgres::start_as(&choice, &Want::default())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("PARTITIONED_POOL_PG_SOURCE allows no other source"),
        "{text}"
    );
    assert!(!text.contains("local binaries:"), "{text}");
}

#[tokio::test]
async fn when_there_is_nothing_one_error_says_what_was_tried_and_what_to_install() {
    let choice = Choice {
        url: None,
        only: None,
        image: Some(NO_IMAGE.to_owned()),
        folders: Vec::new(),
        ..Choice::default()
    };
    let text = postgres::start_as(&choice, &Want::default())
        .await
        .unwrap_err()
        .to_string();
    println!("{text}");
    for part in [
        "Testcontainers: ",
        "local binaries: no folder has",
        "apt-get install postgresql",
        "PARTITIONED_POOL_PG_URL",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
}

#[tokio::test]
async fn local_binaries_of_another_version_may_be_skipped_unless_forced() {
    if !is_here(Kind::Local).await {
        return;
    }
    let choice = Choice {
        url: None,
        only: None,
        images: [(9, NO_IMAGE.to_owned())].into(),
        ..Choice::from_env().unwrap()
    };
    let error = postgres::start_as(&choice, &Want::version(9))
        .await
        .unwrap_err();
    assert!(
        error.may_skip()
            && error
                .to_string()
                .contains("Postgres 9 is wanted, and this is"),
        "{error}"
    );
    let forced = postgres::start_as(&only(Kind::Local), &Want::version(9))
        .await
        .unwrap_err();
    assert!(!forced.may_skip());
}

#[tokio::test]
async fn a_setting_that_the_server_refuses_is_an_error_with_its_words() {
    for kind in [Kind::Docker, Kind::Local] {
        if !is_here(kind).await {
            continue;
        }
        let error = postgres::start_as(&only(kind), &Want::default().setting("no_such_setting", 1))
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("unrecognized configuration parameter \"no_such_setting\""),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_named_server_is_used_as_it_is_and_what_differs_is_told() {
    let server = postgres::start(Want::default().setting("max_connections", 40))
        .await
        .unwrap();
    let choice = Choice {
        url: Some(server.url().to_owned()),
        ..Choice::default()
    };
    let want = Want::default()
        .setting("max_connections", 50)
        .setting("no_such_setting", 1);
    let named = postgres::start_as(&choice, &want).await.unwrap();
    println!("{}", named.describe());
    assert_eq!(
        named.differences(),
        [
            "max_connections is 40 and not 50",
            "no_such_setting is unknown to it and not 1"
        ]
    );
    assert_eq!((named.url(), named.max_connections()), (server.url(), 40));
    let error = named.stop().await.unwrap_err();
    assert!(error.to_string().contains("it is not ours"), "{error}");
    drop(named);
    assert!(
        postgres::start_as(&choice, &Want::version(9))
            .await
            .unwrap_err()
            .may_skip()
    );
    let forced = Choice {
        only: Some(Kind::Url),
        ..choice
    };
    assert!(
        !postgres::start_as(&forced, &Want::version(9))
            .await
            .unwrap_err()
            .may_skip()
    );
    connect(&server)
        .await
        .batch_execute("SELECT 1")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_bad_url_is_not_repeated_in_the_error() {
    for url in [
        "mysql://me:secret@h/d?a=b",
        "postgres://me:secret@/d",
        "postgres://me:secret@127.0.0.1:1/d",
        "secret",
    ] {
        let choice = Choice {
            url: Some(url.to_owned()),
            ..Choice::default()
        };
        let error = postgres::start_as(&choice, &Want::default())
            .await
            .unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_leaves_nothing_over() {
    for kind in [Kind::Docker, Kind::Local] {
        let Some(server) = start_or_skip(kind, Want::default()).await else {
            continue;
        };
        let (address, source) = (address(&server), server.source().clone());
        let panicked = tokio::spawn(async move {
            assert_eq!(server.port(), 0, "this panic is part of the test");
        });
        assert!(panicked.await.unwrap_err().is_panic());
        assert!(!listens(&address));
        if let Source::Docker { container, .. } = source {
            assert!(!is_there(&container).await);
        }
    }
}

#[test]
fn a_server_dropped_after_its_runtime_leaves_nothing_over() {
    for kind in [Kind::Docker, Kind::Local] {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let Some(server) = runtime.block_on(start_or_skip(kind, Want::default())) else {
            continue;
        };
        drop(runtime);
        let address = address(&server);
        drop(server);
        assert!(!listens(&address));
    }
}

/// The environment is one for the whole process, so what depends on it is tested in a process of its own:
/// this binary once more, running only the test that follows.
fn spawn(folder: &Path, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "postgres_source::in_a_process_of_its_own",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env("PARTITIONED_POOL_TEST_CHILD", "1")
        .env("TMPDIR", folder)
        .envs(variables.iter().copied());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the other process found; it then waits for the end of its input.
fn first_line(child: &mut Child) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap())
        .lines()
        .map_while(Result::ok);
    lines
        .skip_while(|line| !line.starts_with("found: "))
        .take(1)
        .collect()
}

#[tokio::test]
#[ignore = "the other side of the tests below, which start it"]
async fn in_a_process_of_its_own() {
    if std::env::var_os("PARTITIONED_POOL_TEST_CHILD").is_none() {
        return;
    }
    let server = postgres::start(Want::default()).await;
    match &server {
        Ok(server) => println!("\nfound: {} at {}", server.describe(), address(server)),
        Err(error) => println!("\nfound: nothing: {}", error.to_string().replace('\n', " ")),
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A folder that the server's user can reach.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let everyone = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everyone).unwrap();
    folder
}

fn becomes_true(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn signal(child: &Child, signal: &str) {
    assert!(
        Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

const NO_ENGINE: (&str, &str) = ("DOCKER_HOST", "unix:///nonexistent/docker.sock");

#[test]
fn an_engine_that_is_not_there_is_found_out_within_seconds() {
    let (folder, began) = (open_folder(), Instant::now());
    let variables = [NO_ENGINE, ("PARTITIONED_POOL_PG_SOURCE", "docker")];
    let mut child = spawn(folder.path(), &variables);
    let line = first_line(&mut child);
    assert!(
        line.contains("found: nothing:") && line.contains("no Docker engine answers"),
        "{line}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[tokio::test]
async fn a_killed_process_leaves_no_cluster_over() {
    if !is_here(Kind::Local).await {
        return;
    }
    let folder = open_folder();
    let mut child = spawn(
        folder.path(),
        &[NO_ENGINE, ("PARTITIONED_POOL_PG_SOURCE", "local")],
    );
    let line = first_line(&mut child);
    assert!(line.contains("from local binaries"), "{line}");
    assert!(folder.path().read_dir().unwrap().next().is_some());
    signal(&child, "-KILL");
    child.wait().unwrap();
    assert!(becomes_true(|| folder
        .path()
        .read_dir()
        .unwrap()
        .next()
        .is_none()));
    assert!(!listens(line.rsplit(' ').next().unwrap()));
}

#[tokio::test]
async fn ctrl_c_leaves_no_container_over() {
    if !is_here(Kind::Docker).await {
        return;
    }
    let folder = open_folder();
    let mut child = spawn(folder.path(), &[("PARTITIONED_POOL_PG_SOURCE", "docker")]);
    let line = first_line(&mut child);
    let container = line
        .split_once("container ")
        .unwrap()
        .1
        .split(' ')
        .next()
        .unwrap();
    assert!(is_there(container).await);
    // Held open, so that the child ends by the signal and by nothing else.
    let input = child.stdin.take();
    signal(&child, "-INT");
    assert!(!child.wait().unwrap().success());
    drop(input);
    assert!(!is_there(container).await);
}
