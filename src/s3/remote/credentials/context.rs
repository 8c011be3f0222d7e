//! What the library's sources do, on this runtime: requests, files, programs, settings.
//!
//! Invariant: everything that fails here is written down, so that an error can tell how each
//! source ended; several of the library's say only that they have nothing. Answers and files are
//! bounded, and so is the time that they take.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_rt::http_client::{HttpClient, Limits, TlsConfig, read_body};
use celld_rt::net::resolve;
use celld_rt::timeout;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use reqsign_core::{
    CommandExecute, CommandOutput, Context, Env, Error, FileRead, HttpSend, MaybeSend,
};
use send_wrapper::SendWrapper;

use super::Sources;

/// Answers and files of sources are a few kilobytes.
const BYTES_MAX: usize = 1 << 20;
/// A metadata server is on this machine or one hop away. Where there is none, nothing answers.
const NEAR_CONNECT_LIMIT: Duration = Duration::from_secs(1);
const NEAR_LIMIT: Duration = Duration::from_secs(5);
const FAR_CONNECT_LIMIT: Duration = Duration::from_secs(5);
const FAR_LIMIT: Duration = Duration::from_secs(20);
/// A program may ask a server; a person may not be asked.
const PROGRAM_LIMIT: Duration = Duration::from_secs(60);

/// Settings by name, as the process has them or as a test gives them. Empty ones count as unset.
#[derive(Clone, Default)]
pub(crate) struct Environment(Arc<BTreeMap<String, String>>);

impl Environment {
    /// Those of this process. What is not UTF-8 is left out.
    pub(crate) fn of_process() -> Self {
        let all = std::env::vars_os();
        Self::of(all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// These.
    pub(crate) fn of(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        let set = settings.into_iter().filter(|(_, value)| !value.is_empty());
        Self(Arc::new(set.collect()))
    }

    /// One of them.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Says names only: values are secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Env for Environment {
    fn var(&self, key: &str) -> Option<String> {
        self.get(key).map(ToOwned::to_owned)
    }
    fn vars(&self) -> HashMap<String, String> {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
    fn home_dir(&self) -> Option<PathBuf> {
        self.get("HOME").map(PathBuf::from)
    }
}

/// What failed since it was last taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures(Arc<Mutex<Vec<String>>>);

impl Failures {
    fn note(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A context for one load.
pub(super) fn of(sources: &Sources) -> (Context, Failures) {
    let failures = Failures::default();
    let http = Http {
        tls: sources.tls.clone(),
        sts: sources.environment.get("AWS_ENDPOINT_URL_STS").map(ToOwned::to_owned),
        failures: failures.clone(),
    };
    let context = Context::new()
        .with_http_send(http)
        .with_file_read(Files { failures: failures.clone() })
        .with_command_execute(Programs { failures: failures.clone() })
        .with_env(sources.environment.clone());
    (context, failures)
}

#[derive(Clone)]
struct Http {
    tls: TlsConfig,
    /// The library knows Amazon's addresses of STS only; this is where it is instead.
    sts: Option<String>,
    failures: Failures,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl HttpSend for Http {
    fn http_send(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = reqsign_core::Result<Response<Bytes>>> + MaybeSend {
        // A load stays on the executor that began it.
        SendWrapper::new(self.clone().send(request))
    }
}

impl Http {
    async fn send(self, mut request: Request<Bytes>) -> reqsign_core::Result<Response<Bytes>> {
        if let Some(base) = &self.sts {
            redirect_sts(&mut request, base)?;
        }
        let shown = shown(&request);
        let near = is_near(request.uri().host().unwrap_or_default());
        let limit = if near { NEAR_LIMIT } else { FAR_LIMIT };
        let result = match timeout(limit, self.exchange(request, near)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no whole answer within {} s", limit.as_secs()),
            )),
        };
        match &result {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.failures.note(format!("{shown}: status {}", response.status())),
            Err(error) => self.failures.note(format!("{shown}: {error}")),
        }
        // Its text is in the failures.
        result.map_err(|error| Error::unexpected("no answer").with_source(error))
    }

    /// A connection of its own for each request: there are a few in an hour.
    async fn exchange(&self, request: Request<Bytes>, near: bool) -> io::Result<Response<Bytes>> {
        let connect_limit = if near { NEAR_CONNECT_LIMIT } else { FAR_CONNECT_LIMIT };
        let uri = request.uri();
        let port =
            uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        let name = timeout(connect_limit, resolve(uri.host().unwrap_or_default(), port)).await;
        name.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no name server answers"))??;

        let limits = Limits { connect: connect_limit, ..Limits::default() };
        let client = HttpClient::with_limits(self.tls.clone(), limits);
        let sent = client.send(request.map(Full::new)).await;
        let (head, body) = sent.map_err(io::Error::other)?.into_parts();
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, "an answer without end");
        let body = read_body(body, BYTES_MAX as u64).await?.ok_or_else(too_long)?;
        Ok(Response::from_parts(head, body))
    }
}

/// Without the query, which may hold a token.
fn shown(request: &Request<Bytes>) -> String {
    let uri = request.uri();
    let host = uri.authority().map_or("", http::uri::Authority::as_str);
    format!("{} {}://{host}{}", request.method(), uri.scheme_str().unwrap_or("?"), uri.path())
}

/// Metadata servers and container agents.
pub(super) fn is_near(host: &str) -> bool {
    const EC2_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    const EKS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23);
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(IpAddr::V4(address)) => address.is_link_local() || address.is_loopback(),
        Ok(IpAddr::V6(address)) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address == EC2_V6
                || address == EKS_V6
        }
        Err(_) => matches!(host, "metadata.google.internal" | "metadata" | "localhost"),
    }
}

/// A signed request keeps the host that was signed.
fn redirect_sts(request: &mut Request<Bytes>, base: &str) -> reqsign_core::Result<()> {
    let host = request.uri().host().unwrap_or_default();
    let is_sts =
        host.starts_with("sts.") && (host.contains(".amazonaws.") || host.contains(".gov"));
    if !is_sts {
        return Ok(());
    }
    let bad = || Error::config_invalid(format!("AWS_ENDPOINT_URL_STS is not a URL: {base:?}"));
    let wanted: Uri = base.parse().map_err(|_| bad())?;
    let mut uri = request.uri().clone().into_parts();
    uri.scheme = Some(wanted.scheme().ok_or_else(bad)?.clone());
    uri.authority = Some(wanted.authority().ok_or_else(bad)?.clone());
    if request.headers().contains_key("authorization") && !request.headers().contains_key(HOST) {
        let host = HeaderValue::from_str(host).map_err(|_| bad())?;
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| bad())?;
    Ok(())
}

#[derive(Debug)]
struct Files {
    failures: Failures,
}

impl FileRead for Files {
    fn file_read(
        &self,
        path: &str,
    ) -> impl Future<Output = reqsign_core::Result<Vec<u8>>> + MaybeSend {
        let (path, failures) = (path.to_owned(), self.failures.clone());
        SendWrapper::new(async move {
            read_file(&path).await.map_err(|error| {
                failures.note(format!("{path}: {error}"));
                error.into()
            })
        })
    }
}

/// The whole file.
pub(super) async fn read_file(path: &str) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    celld_rt::blocking(move || {
        let mut bytes = Vec::new();
        // A pipe or device would have no end.
        std::fs::File::open(&path)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has more than 1 MiB"));
        }
        Ok(bytes)
    })
    .await
}

#[derive(Debug)]
struct Programs {
    failures: Failures,
}

impl CommandExecute for Programs {
    fn command_execute<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> impl Future<Output = reqsign_core::Result<CommandOutput>> + MaybeSend + 'a {
        let mut command = Command::new(program);
        command.args(args);
        SendWrapper::new(async move {
            celld_rt::blocking(move || run(command)).await.map_err(|error| {
                self.failures.note(format!("the program {program}: {error}"));
                error.into()
            })
        })
    }
}

/// Runs a program to its end, or ends it.
fn run(mut command: Command) -> io::Result<CommandOutput> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    let output = child.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.take(BYTES_MAX as u64).read_to_end(&mut bytes).map(|_| bytes)
    });
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if since.elapsed() > PROGRAM_LIMIT {
            child.kill()?;
            child.wait()?;
            let text = format!("it had not ended after {} s", PROGRAM_LIMIT.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let stdout = reader.join().map_err(|_| io::Error::other("its output was not read"))??;
    Ok(CommandOutput { status: status.code().unwrap_or(-1), stdout, stderr: Vec::new() })
}
