//! A container on a Docker engine, by Testcontainers.

use std::net::Ipv4Addr;
use std::time::Duration;

use testcontainers::bollard::Docker;
use testcontainers::bollard::models::HostConfig;
use testcontainers::bollard::query_parameters::RemoveContainerOptionsBuilder;
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use super::source::{Choice, Source, Why, causes};
use super::{Found, Keeper, Want, free_port, owner_url, random};

/// An engine that is well answers a ping in a millisecond.
const PING: Duration = Duration::from_secs(5);
/// 150 MB over a slow line. An engine without a way to its registry says so itself in far less.
const PULL: Duration = Duration::from_secs(300);
/// A container runs within a second, or within some when the machine is busy.
const RUN: Duration = Duration::from_secs(60);
/// A fast shutdown takes less than a second; after this many the engine kills.
const STOP_SECONDS: i32 = 10;
const REMOVE: Duration = Duration::from_secs(20);
/// Somebody may take the free port before the container does; three times in a row is no accident.
const ATTEMPTS: usize = 3;

/// Every container of this module carries this label.
pub(crate) const LABEL: (&str, &str) = ("partitioned-pool", "postgres");

/// A container that is removed when it is dropped.
pub(super) struct Container {
    inner: Option<Box<ContainerAsync<GenericImage>>>,
}

pub(super) async fn start(choice: &Choice, want: &Want) -> Result<Found, Why> {
    let image = choice.image(want.version);
    let engine = engine().await.map_err(Why::Absent)?;
    have_image(&engine, &image).await.map_err(Why::Failed)?;
    let password = format!("{:016x}", random());
    let mut command = vec!["postgres".to_owned()];
    command.extend(want.arguments());
    let request = |name: &str, port| {
        request(&image, name, port, choice)
            .with_cmd(command.clone())
            .with_env_var("POSTGRES_PASSWORD", &password)
    };
    let (container, port) = run(&engine, &image, request).await.map_err(Why::Failed)?;
    found(container, image, port, &password).await
}

/// Copies the server over the network of the engine, and follows it. A second start finds the copy there.
const STANDBY: &str = r#"
[ -s "$PGDATA/PG_VERSION" ] || pg_basebackup --pgdata="$PGDATA" --dbname="$PRIMARY" --wal-method=stream \
    --checkpoint=fast --write-recovery-conf --no-sync || exit 1
exec postgres "$@"
"#;

/// A standby of the server in `primary`, which must let it in.
pub(super) async fn standby(
    primary: &Container,
    image: &str,
    password: &str,
    choice: &Choice,
    want: &Want,
) -> Result<Found, Why> {
    let engine = engine().await.map_err(Why::Absent)?;
    let address = address(&engine, primary).await.map_err(Why::Failed)?;
    let mut command: Vec<String> = ["/bin/sh", "-c", STANDBY, "standby"].map(Into::into).into();
    command.extend(want.arguments());
    let request = |name: &str, port| {
        request(image, name, port, choice)
            .with_cmd(command.clone())
            .with_user("postgres")
            .with_env_var("PGDATA", "/tmp/standby")
            .with_env_var("PRIMARY", format!("host={address} port=5432 user=postgres"))
            .with_env_var("PGPASSWORD", password)
    };
    let (container, port) = run(&engine, image, request).await.map_err(Why::Failed)?;
    found(container, image.to_owned(), port, password).await
}

/// The address of a container for other containers.
async fn address(engine: &Docker, of: &Container) -> Result<String, String> {
    let inspected = engine.inspect_container(of.inner().id(), None).await;
    let settings = inspected.map_err(|error| causes(&error))?.network_settings;
    let networks = settings.and_then(|settings| settings.networks);
    let mut addresses = networks
        .into_iter()
        .flatten()
        .filter_map(|(_, n)| n.ip_address);
    let address = addresses.find(|address| !address.is_empty());
    address.ok_or_else(|| "the engine gave it no address for other containers".to_owned())
}

async fn found(
    container: Container,
    image: String,
    port: u16,
    password: &str,
) -> Result<Found, Why> {
    let host = container.host().await.map_err(Why::Failed)?;
    let url = owner_url(&host, port, password);
    let config = url.parse().expect("bug: a URL made here can be read");
    let source = Source::Docker {
        image,
        container: container.short_id(),
        host,
        port,
    };
    Ok(Found {
        keeper: Keeper::Container(container),
        source,
        config,
        url,
    })
}

/// An engine that answers, or why there is none.
async fn engine() -> Result<Docker, String> {
    let none = |reason: String| format!("no Docker engine answers: {reason}");
    let engine = docker_client_instance()
        .await
        .map_err(|error| none(causes(&error)))?;
    match tokio::time::timeout(PING, engine.ping()).await {
        Ok(Ok(_)) => Ok(engine),
        Ok(Err(error)) => Err(none(causes(&error))),
        Err(_) => Err(none(format!("silent for {PING:?}"))),
    }
}

async fn have_image(engine: &Docker, image: &str) -> Result<(), String> {
    if engine.inspect_image(image).await.is_ok() {
        return Ok(());
    }
    eprintln!("pulling the image {image}");
    let cannot =
        |reason: String| format!("the engine has no image {image} and cannot pull it: {reason}");
    match tokio::time::timeout(PULL, generic(image).pull_image()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(cannot(causes(&error))),
        Err(_) => Err(cannot(format!("not done within {PULL:?}"))),
    }
}

/// `name:tag`; a colon before a slash belongs to the registry's port.
fn generic(image: &str) -> GenericImage {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => GenericImage::new(name, tag),
        _ => GenericImage::new(image, "latest"),
    }
}

/// Runs the container on a port of its own, which it keeps when it is stopped and started.
async fn run(
    engine: &Docker,
    image: &str,
    request: impl Fn(&str, u16) -> ContainerRequest<GenericImage>,
) -> Result<(Container, u16), String> {
    let mut attempt = 1;
    loop {
        let (name, port) = (
            format!("partitioned-pool-postgres-{:016x}", random()),
            free_port(),
        );
        let error = match request(&name, port).start().await {
            Ok(inner) => {
                return Ok((
                    Container {
                        inner: Some(Box::new(inner)),
                    },
                    port,
                ));
            }
            Err(error) => causes(&error),
        };
        // Created but never started: nobody else removes it.
        remove(engine, &name).await.ok();
        if attempt == ATTEMPTS || !is_port_taken(&error) {
            return Err(format!("the image {image} does not run: {error}"));
        }
        attempt += 1;
    }
}

fn request(image: &str, name: &str, port: u16, choice: &Choice) -> ContainerRequest<GenericImage> {
    let request = generic(image)
        .with_container_name(name)
        .with_label(LABEL.0, LABEL.1)
        .with_mapped_port(port, 5432.tcp())
        .with_startup_timeout(RUN);
    if choice.engine_elsewhere {
        request
    } else {
        request.with_host_config_modifier(bind_to_loopback)
    }
}

/// A server whose password is in nobody's hands but ours still need not listen to the whole network.
fn bind_to_loopback(config: &mut HostConfig) {
    let bindings = config
        .port_bindings
        .iter_mut()
        .flat_map(|ports| ports.values_mut())
        .flatten()
        .flatten();
    for binding in bindings {
        binding.host_ip = Some(Ipv4Addr::LOCALHOST.to_string());
    }
}

fn is_port_taken(error: &str) -> bool {
    error.contains("already allocated") || error.contains("already in use")
}

async fn remove(engine: &Docker, name: &str) -> Result<(), String> {
    let options = RemoveContainerOptionsBuilder::new()
        .force(true)
        .v(true)
        .build();
    let removed = tokio::time::timeout(REMOVE, engine.remove_container(name, Some(options))).await;
    removed
        .map_err(|_| format!("not done within {REMOVE:?}"))?
        .map_err(|error| causes(&error))
}

impl Container {
    fn inner(&self) -> &ContainerAsync<GenericImage> {
        self.inner
            .as_ref()
            .expect("bug: only drop takes the container out")
    }

    fn short_id(&self) -> String {
        self.inner().id().chars().take(12).collect()
    }

    async fn host(&self) -> Result<String, String> {
        let host = self
            .inner()
            .get_host()
            .await
            .map_err(|error| causes(&error))?
            .to_string();
        // "localhost" may mean ::1, where nothing listens.
        Ok(if host == "localhost" {
            Ipv4Addr::LOCALHOST.to_string()
        } else {
            host
        })
    }

    /// If the container has ended: the end of its log.
    pub(super) async fn ended(&self) -> Option<String> {
        match self.inner().is_running().await {
            Ok(true) => None,
            Ok(false) => Some(self.last_words().await),
            Err(error) => Some(causes(&error)),
        }
    }

    async fn last_words(&self) -> String {
        let log = self.inner().stderr_to_vec().await.unwrap_or_default();
        super::local::last_lines(&String::from_utf8_lossy(&log))
    }

    pub(super) async fn stop(&self) -> Result<(), String> {
        self.inner()
            .stop_with_timeout(Some(STOP_SECONDS))
            .await
            .map_err(|error| causes(&error))
    }

    pub(super) async fn start(&self) -> Result<(), String> {
        self.inner().start().await.map_err(|error| causes(&error))
    }
}

/// Testcontainers removes on drop, too, but only inside a runtime that is still running. This way it also
/// works outside one, and in a runtime that is being shut down.
impl Drop for Container {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        let id = inner.id().to_owned();
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime
                .block_on(async { tokio::time::timeout(REMOVE, inner.rm()).await })?
                .map_err(std::io::Error::other)
        });
        if !matches!(removal.join(), Ok(Ok(()))) {
            eprintln!("the container {id} may be left over; remove it with: docker rm -f {id}");
        }
    }
}
