//! A store that answers what a test tells it to, over real sockets: what no sound store says.

mod answers;
mod conditional;
mod listings;
mod objects;
mod opening;
mod repeats;
mod rotation;
mod streams;
mod trust;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{Bucket, Limits, OpenOptions, StaticKeys};

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub method: String,
    /// Path and query as they stand in the first line.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Counts the connections, from 0.
    pub connection: usize,
    pub at: Instant,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let known = self.headers.iter().find(|(known, _)| known == name);
        known.map(|(_, value)| value.as_str())
    }
}

/// What the store does with a request.
pub(super) enum Say {
    /// These bytes; the connection goes on.
    Bytes(Vec<u8>),
    /// These bytes, and the connection ends.
    Last(Vec<u8>),
    /// Nothing, for as long as the test runs.
    Hang,
}

/// A whole answer.
pub(super) fn say(status: u16, headers: &[(&str, &str)], body: &str) -> Say {
    let mut text = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    Say::Bytes(format!("{text}\r\n{body}").into_bytes())
}

/// An error in the store's own words.
pub(super) fn error(status: u16, code: &str) -> Say {
    say(status, &[], &format!("<Error><Code>{code}</Code><Message>m</Message></Error>"))
}

/// A store whose answers the test makes. It runs until the program ends.
pub(super) struct Scripted {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    /// `answer` is asked for each request, in their order.
    pub fn start(answer: impl FnMut(&Asked) -> Say + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (asked.clone(), Arc::new(Mutex::new(answer)));
        std::thread::spawn(move || {
            for (number, socket) in listener.incoming().enumerate() {
                let (log, answer) = (log.clone(), answer.clone());
                let Ok(socket) = socket else { return };
                std::thread::spawn(move || serve(&socket, number, &log, &answer));
            }
        });
        Self { port, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.look(<[Asked]>::to_vec)
    }

    /// The same, where bodies are long.
    pub fn look<T>(&self, look: impl FnOnce(&[Asked]) -> T) -> T {
        look(&self.asked.lock().expect("no test panics with it"))
    }

    pub fn options(&self) -> OpenOptions {
        options_at(self.port)
    }

    /// The bucket `bucket` of it, with `pre` before each key.
    pub fn bucket(&self) -> Bucket {
        bucket_at(self.port)
    }

    /// The same, spoken to as to Azure.
    pub fn container(&self) -> Bucket {
        let keys = StaticKeys { id: "account".into(), secret: "c2VjcmV0".into(), token: None };
        let options = OpenOptions { keys: Some(keys), ..self.options() };
        Bucket::open_with("az://bucket/pre", &options).expect("a container")
    }
}

/// The bucket of whoever listens there.
pub(super) fn bucket_at(port: u16) -> Bucket {
    Bucket::open_with("s3://bucket/pre", &options_at(port)).expect("a bucket")
}

fn options_at(port: u16) -> OpenOptions {
    let keys = StaticKeys { id: "id".into(), secret: "secret".into(), token: None };
    OpenOptions {
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        keys: Some(keys),
        ..OpenOptions::default()
    }
}

/// So many attempts, within a time that no sound answer takes.
pub(super) fn attempts(attempts: u32) -> Limits {
    Limits { attempts, deadline: Duration::from_secs(60) }
}

fn serve(
    socket: &TcpStream,
    connection: usize,
    log: &Mutex<Vec<Asked>>,
    answer: &Mutex<impl FnMut(&Asked) -> Say>,
) {
    let mut reader = BufReader::new(socket);
    while let Some(asked) = read(&mut reader, connection) {
        log.lock().expect("no test panics with it").push(asked.clone());
        let said = (answer.lock().expect("answers do not panic"))(&asked);
        let mut writer = socket;
        // A client that has gone away is what some tests are about.
        match said {
            Say::Bytes(bytes) => {
                if writer.write_all(&bytes).is_err() {
                    return;
                }
            }
            Say::Last(bytes) => {
                let _gone = writer.write_all(&bytes);
                let _gone = socket.shutdown(Shutdown::Both);
                return;
            }
            Say::Hang => {
                // Until the client gives up.
                let _gone = reader.read(&mut [0]);
                return;
            }
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>, connection: usize) -> Option<Asked> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let (method, rest) = first.split_once(' ')?;
    let target = rest.strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().expect("a number"))];
    reader.read_exact(&mut body).ok()?;
    let (method, at) = (method.to_owned(), Instant::now());
    Some(Asked { method, target, headers, body, connection, at })
}
