//! A server on loopback that plays a cloud's: it answers requests as a test says, and keeps them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// As it came.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Method and target.
    pub(super) line: String,
    /// By names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

/// Ends with the test's process.
pub(super) struct Server {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` gives status and body.
    pub(super) fn start(answer: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (kept, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (kept, answer) = (kept.clone(), answer.clone());
                std::thread::spawn(move || serve(&socket.expect("a socket"), &kept, &*answer));
            }
        });
        Self { url, asked }
    }

    /// All requests so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no handler panics").clone()
    }
}

fn serve(
    mut socket: &TcpStream,
    kept: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(&Asked) -> (u16, String),
) {
    let mut reader = BufReader::new(socket);
    while let Some(asked) = read(&mut reader) {
        let (status, body) = answer(&asked);
        kept.lock().expect("no handler panics").push(asked);
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
        if socket.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let mut line = || {
        let mut text = String::new();
        reader.read_line(&mut text).ok().filter(|read| *read > 0)?;
        Some(text.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = BTreeMap::new();
    loop {
        let text = line()?;
        let Some((name, value)) = text.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().expect("a number"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = first.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Asked { line, headers, body: String::from_utf8(body).expect("text") })
}
