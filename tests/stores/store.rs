//! The stores: how each is started, and when it is ready.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::cloud::Cloud;
use crate::http::ask;
use crate::installed::{Program, skip};
use crate::network::Host;
use crate::process::Process;
use crate::sign;

/// The bucket, or container, that each store has.
pub const BUCKET: &str = "celld-test";
/// The key id of the S3 stores.
pub const ACCESS_KEY: &str = "CELLDTESTACCESSKEY00";
/// Its secret. SeaweedFS verifies signatures; MiniStack takes any.
pub const SECRET_KEY: &str = "celld/test+secret/key/of/forty/characters";

/// What signatures name.
pub const REGION: &str = "us-east-1";

/// A busy machine starts the slowest of them within this time.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Somebody else may take a port between our look and the start.
const ATTEMPTS: usize = 4;
/// Below what Linux gives to outgoing connections, gRPC of SeaweedFS (10,000 above) included.
const PORTS: std::ops::Range<u16> = 10_200..21_000;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SeaweedFS: a real store on disk; verifies signatures.
    Seaweed,
    /// MiniStack: an emulator of S3 in memory.
    Ministack,
    /// Ours: the XML interface of Google Cloud Storage in memory, written from its documentation.
    Gcsxml,
    /// Azurite: Microsoft's emulator of Azure Blob.
    Azurite,
}

/// A store that runs. It ends when it is dropped.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    /// Where it runs; `None`: on loopback.
    host: Option<Host>,
    port: u16,
    process: Process,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Seaweed, Self::Ministack, Self::Gcsxml, Self::Azurite];

    fn program(self) -> Program {
        match self {
            Self::Seaweed => Program::Weed,
            Self::Ministack => Program::Ministack,
            Self::Gcsxml => Program::Gcsxml,
            Self::Azurite => Program::Azurite,
        }
    }
}

impl Store {
    /// Starts an empty one, with [`BUCKET`] in it.
    ///
    /// # Errors
    /// It is not installed, or does not start; what it said is in the error.
    pub fn start(kind: Kind) -> Result<Self> {
        for _ in 1..ATTEMPTS {
            let Ok(store) = Self::start_once(kind, None, None) else { continue };
            return Ok(store);
        }
        Self::start_once(kind, None, None)
    }

    /// The same on a host of its own, for all hosts of its network.
    ///
    /// # Errors
    /// As of [`Store::start`].
    pub fn start_on(kind: Kind, host: &Host) -> Result<Self> {
        host.on(|| Self::start_once(kind, Some(host), None))
    }

    /// The one that takes a cloud's place, on a host of its own: also at port 443, by TLS.
    ///
    /// # Errors
    /// As of [`Store::start`].
    pub fn start_in(cloud: Cloud<'_>, host: &Host) -> Result<Self> {
        host.on(|| Self::start_once(cloud.kind(), Some(host), Some(cloud)))
    }

    /// Whether it is installed; if not, the user has been told.
    ///
    /// # Panics
    /// It is not, and is required.
    pub fn is_installed(kind: Kind) -> bool {
        let missing = kind.program().command().err();
        if let Some(why) = &missing {
            skip(kind.program(), why);
        }
        missing.is_none()
    }

    /// The one of this program's; all tests share it, so each takes a prefix of its own. `None`:
    /// it is not installed, and the user has been told.
    ///
    /// # Panics
    /// It is installed and does not start, or is not and is required.
    pub fn shared(kind: Kind) -> Option<&'static Self> {
        static SHARED: [OnceLock<Store>; 4] = [const { OnceLock::new() }; 4];
        if !Self::is_installed(kind) {
            return None;
        }
        let start = || Self::start(kind).unwrap_or_else(|why| panic!("{kind:?}: {why:#}"));
        Some(SHARED[kind as usize].get_or_init(start))
    }

    /// On the thread that calls, this is about the network that it is in.
    fn start_once(kind: Kind, host: Option<&Host>, cloud: Option<Cloud<'_>>) -> Result<Self> {
        let mut command = kind.program().command()?;
        let dir = Process::directory()?;
        let address = host.map_or(Ipv4Addr::LOCALHOST, Host::address);
        // On a host it is asked from there, too.
        let bind = if host.is_some() { Ipv4Addr::UNSPECIFIED } else { address };
        let port = match kind {
            Kind::Seaweed => free_ports(5, true)?,
            Kind::Ministack | Kind::Gcsxml | Kind::Azurite => free_ports(1, false)?,
        };
        let s3_port = match kind {
            Kind::Seaweed => {
                command.args(weed_arguments(port, &dir, address, bind));
                command.envs([
                    ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
                    ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
                ]);
                port + 3
            }
            Kind::Ministack => {
                command.env("BIND_HOST", bind.to_string()).env("SERVICES", "s3");
                // Otherwise it also listens on a fixed port of every interface.
                command.env("IOT_MTLS_ENABLED", "0").env("GATEWAY_PORT", port.to_string());
                port
            }
            Kind::Gcsxml => {
                let is_reached = host.is_none() || cloud.is_some();
                ensure!(is_reached, "{kind:?} listens on loopback only");
                command.args(["--listen", &port.to_string()]);
                port
            }
            Kind::Azurite => {
                ensure!(host.is_none(), "{kind:?} is asked through loopback only");
                command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
                command.args(["--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]);
                command.arg("--disableTelemetry");
                port
            }
        };
        if let Some(host) = host {
            host.takes(&mut command);
        }
        if let Some(cloud) = cloud {
            command.args(cloud.arguments());
        }
        let mut process = Process::start(&format!("{kind:?}"), command, dir)?;
        process
            .wait_until(START_LIMIT, |process| is_ready(kind, s3_port, process).then_some(()))?;
        let store = Self { kind, host: host.cloned(), port: s3_port, process };
        store.make_bucket(cloud)?;
        Ok(store)
    }

    fn make_bucket(&self, cloud: Option<Cloud<'_>>) -> Result<()> {
        let made = match self.kind {
            // Its argument makes it.
            Kind::Seaweed => return Ok(()),
            Kind::Ministack | Kind::Gcsxml => {
                let shown = cloud.and_then(Cloud::header);
                let headers: Vec<_> =
                    shown.iter().map(|(name, text)| (*name, text.as_str())).collect();
                ask(self.port, "PUT", &format!("/{BUCKET}"), &headers, "")?
            }
            Kind::Azurite => azure::make_container(self.port)?,
        };
        ensure!(matches!(made.status, 200 | 201), "{:?}: no bucket: {made:?}", self.kind);
        Ok(())
    }

    /// Which.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port on 127.0.0.1 of where it runs.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the client takes as `--endpoint`.
    pub fn endpoint(&self) -> String {
        match &self.host {
            None => endpoint(self.kind, self.port),
            Some(host) => format!("http://{}:{}", host.address(), self.port),
        }
    }

    /// The URL of its bucket below `prefix`.
    pub fn url(&self, prefix: &str) -> String {
        let scheme = match self.kind {
            Kind::Seaweed | Kind::Ministack => "s3",
            Kind::Gcsxml => "gs",
            Kind::Azurite => "az",
        };
        format!("{scheme}://{BUCKET}/{prefix}")
    }

    /// Headers that sign a request for an object (letters, digits, `-`, `_`, `.` and `/`) without
    /// the client under test, for fifteen minutes and any body. Only of S3.
    pub fn signed(&self, method: &str, object: &str) -> Vec<(&'static str, String)> {
        let host = format!("127.0.0.1:{}", self.port);
        sign::headers(method, &host, &format!("/{BUCKET}/{object}"))
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its process, to be ended.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Where a store of this kind, or a proxy before one, is reached.
pub(crate) fn endpoint(kind: Kind, port: u16) -> String {
    match kind {
        Kind::Seaweed | Kind::Ministack | Kind::Gcsxml => format!("http://127.0.0.1:{port}"),
        Kind::Azurite => format!("http://127.0.0.1:{port}/{}", azure::ACCOUNT),
    }
}

fn is_ready(kind: Kind, port: u16, process: &Process) -> bool {
    let answers = |wanted: &[u16]| {
        ask(port, "GET", "/", &[], "").is_ok_and(|answer| wanted.contains(&answer.status))
    };
    match kind {
        // It says so when all of its parts have found each other and the bucket is made.
        Kind::Seaweed => process.said().contains("Press Ctrl+C") && answers(&[403]),
        Kind::Ministack => answers(&[200]),
        Kind::Gcsxml => process.said().contains("gcsxml: 127.0.0.1:"),
        Kind::Azurite => answers(&[400, 403, 404]),
    }
}

/// Five services from `port` on; each has its gRPC 10,000 above. The S3 one is `port` + 3.
fn weed_arguments(port: u16, dir: &TempDir, address: Ipv4Addr, bind: Ipv4Addr) -> Vec<String> {
    let dir = dir.path().display();
    let mut arguments: Vec<String> = [
        "mini",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    .map(ToOwned::to_owned)
    .into();
    arguments.push(format!("-ip={address}"));
    arguments.push(format!("-ip.bind={bind}"));
    for (n, service) in (0..).zip(["master", "volume", "filer", "s3", "admin"]) {
        arguments.push(format!("-{service}.port={}", port + n));
    }
    arguments.push(format!("-dir={dir}"));
    arguments.push(format!("-filer.localSocket={dir}/filer.sock"));
    arguments.push(format!("-s3.localSocket={dir}/s3.sock"));
    arguments.push(format!("-bucket={BUCKET}"));
    arguments
}

/// The first of `count` ports in a row that nobody listens on, nor on those 10,000 above them.
fn free_ports(count: u16, also_above: bool) -> Result<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let span = u32::from(PORTS.end - PORTS.start - count);
    for _ in 0..200 {
        let mut random = [0; 4];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random)
            .ok()
            .context("the system gives no random number")?;
        let first = PORTS.start + u16::try_from(u32::from_le_bytes(random) % span)?;
        let mut ports = first..first + count;
        if ports.all(|port| is_free(port) && (!also_above || is_free(port + 10_000))) {
            return Ok(first);
        }
    }
    anyhow::bail!("there are no free ports in {PORTS:?}")
}

/// What Azurite wants before a container is there: one request that is signed.
pub(crate) mod azure {
    use super::{BUCKET, Result, ask};
    use crate::http::Answer;

    /// The account that the emulator has; its key is published.
    pub(crate) const ACCOUNT: &str = "devstoreaccount1";
    pub(crate) const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    pub(super) fn make_container(port: u16) -> Result<Answer> {
        // The emulator does not look how old it is.
        let (date, version) = ("Mon, 30 Nov 2026 00:00:00 GMT", "2021-12-02");
        let named = format!("x-ms-date:{date}\nx-ms-version:{version}\n");
        let resource = format!("/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container");
        let signed = format!("PUT{}{named}{resource}", "\n".repeat(12));
        let key = base64_simd::STANDARD.decode_to_vec(KEY)?;
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
        let signature = ring::hmac::sign(&key, signed.as_bytes());
        let signature = base64_simd::STANDARD.encode_to_string(signature.as_ref());
        let authorization = format!("SharedKey {ACCOUNT}:{signature}");
        ask(
            port,
            "PUT",
            &format!("/{ACCOUNT}/{BUCKET}?restype=container"),
            &[("x-ms-date", date), ("x-ms-version", version), ("Authorization", &authorization)],
            "",
        )
    }
}
