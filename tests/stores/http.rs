//! One HTTP request on a connection of its own: enough to ask whether a store is ready.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// A store that is busy starting may answer late.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body, as text.
    pub text: String,
}

/// Sends one request to a port of this machine.
///
/// # Errors
/// Nobody listens, or what answers is not HTTP.
pub fn ask(
    port: u16,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Answer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\n");
    head.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n", body.len()));
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    // Not all of them close the connection when they are asked to.
    while !is_whole(&bytes) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(got) => bytes.extend_from_slice(&piece[..got]),
            // Timers of an executor are signals, and a socket with a time-out is not resumed.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a head")?;
    ensure!(head.starts_with("HTTP/1."), "not HTTP: {head:?}");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answer { status: status.context("an answer without a status")?, text: body.to_owned() })
}

/// Whether it has as many bytes as it says. One that does not say ends with its connection.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() >= end + 4 + length)
}
