//! A store in one process that does nothing but HTTP: the floor under each client.
//!
//! It keeps the versions of objects, so that conditional writes are honoured, and no bytes. It runs
//! as a process of its own, so that its CPU is not charged to the client.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use celld_stores::Process;

/// The argument that makes this program a sink.
const ARGUMENT: &str = "--be-the-sink";

/// Versions by path.
type Versions = Arc<Mutex<HashMap<String, u64>>>;

/// Starts one. Returns its port, too.
///
/// # Errors
/// It does not start.
pub fn start() -> Result<(Process, u16)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT);
    let mut process = Process::start("the sink", command, Process::directory()?)?;
    let port = process.wait_until(Duration::from_secs(20), |process| {
        process.said().strip_suffix('\n')?.strip_prefix("port ")?.parse().ok()
    })?;
    Ok((process, port))
}

/// Serves for ever, if this process was started for that.
///
/// # Errors
/// There is no port.
pub fn serve_if_asked() -> Result<()> {
    if std::env::args().nth(1).as_deref() != Some(ARGUMENT) {
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("port {}", listener.local_addr()?.port());
    let versions = Versions::default();
    loop {
        let (stream, _) = listener.accept()?;
        let versions = versions.clone();
        // A client that breaks off is the end of its connection only.
        std::thread::spawn(move || serve(stream, &versions));
    }
}

/// One connection, until it ends.
fn serve(stream: TcpStream, versions: &Versions) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::with_capacity(64 << 10, stream.try_clone()?);
    let mut output = stream;
    let (mut line, mut next) = (String::new(), String::new());
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).context("no request line")?.to_owned();
        let (mut length, mut absent, mut matches) = (0, false, None);
        loop {
            next.clear();
            input.read_line(&mut next)?;
            let Some((name, value)) = next.split_once(':') else { break };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse()?,
                "if-none-match" => absent = true,
                "if-match" => matches = Some(value.trim_matches('"').parse::<u64>()?),
                _ => {}
            }
        }
        discard(&mut input, length)?;
        let answer = match written(versions, path, absent, matches) {
            Some(version) => {
                format!("HTTP/1.1 200 OK\r\nETag: \"{version}\"\r\nContent-Length: 0\r\n\r\n")
            }
            None => "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n".to_owned(),
        };
        output.write_all(answer.as_bytes())?;
    }
}

/// The new version, if the condition holds.
fn written(versions: &Versions, path: String, absent: bool, matches: Option<u64>) -> Option<u64> {
    let mut versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
    let now = versions.entry(path).or_insert(0);
    if (absent && *now != 0) || matches.is_some_and(|version| version != *now) {
        return None;
    }
    *now += 1;
    Some(*now)
}

fn discard(input: &mut BufReader<TcpStream>, mut left: usize) -> Result<()> {
    while left > 0 {
        let got = input.fill_buf()?.len().min(left);
        anyhow::ensure!(got > 0, "a body that ends early");
        input.consume(got);
        left -= got;
    }
    Ok(())
}
