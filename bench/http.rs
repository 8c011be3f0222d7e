//! As much of HTTP/1.1 as a load generator needs: requests without secrets, whole responses.
//!
//! Invariant: a response is taken as a whole or not at all; what breaks the framing is an error,
//! never a guess. Source: RFC 9112, sections 6 and 7.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// No response of a bench is larger.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// One whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The body, without chunk framing.
    pub body: Vec<u8>,
}

/// The bytes of a request without a body.
pub fn request(method: &str, path: &str) -> Vec<u8> {
    // A POST says that it has no body, as some servers answer 411 otherwise.
    let length = if method == "POST" { "content-length: 0\r\n" } else { "" };
    format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n{length}\r\n").into_bytes()
}

/// Reads the response at the start of `bytes`, and how long it is; `None` while some is missing.
///
/// # Errors
/// The bytes are no response, or one that has no length.
pub fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>> {
    ensure!(bytes.len() <= RESPONSE_BYTES_MAX, "a response of more than 16 MiB");
    let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).context("a response head that is no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.and_then(|line| line.get(..3)).and_then(|code| code.parse().ok());
    let Some(status) = status else { bail!("no HTTP/1.1 response: {head:?}") };
    let header = |name: &str| {
        let mut lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    let start = end + 4;
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        let chunks = parse_chunks(&bytes[start..])?;
        return Ok(chunks.map(|(body, length)| (Response { status, body }, start + length)));
    }
    let length: usize = match header("content-length") {
        Some(length) => length.parse().context("a content-length that is no number")?,
        None if status == 204 || status == 304 => 0,
        None => bail!("a response without a length: {head:?}"),
    };
    ensure!(length <= RESPONSE_BYTES_MAX, "a response of {length} bytes");
    let Some(body) = bytes.get(start..start + length) else { return Ok(None) };
    Ok(Some((Response { status, body: body.to_vec() }, start + length)))
}

fn parse_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = find(&bytes[at..], b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[at..at + line]).context("a chunk without a size")?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).context("a chunk without a size")?;
        ensure!(size <= RESPONSE_BYTES_MAX, "a chunk of {size} bytes");
        let start = at + line + 2;
        let Some(chunk) = bytes.get(start..start + size + 2) else { return Ok(None) };
        ensure!(chunk.ends_with(b"\r\n"), "a chunk that does not end where it says");
        at = start + size + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Sends one request on a connection of its own and waits for the answer.
///
/// # Errors
/// No answer within `patience`, or a broken one.
pub fn ask(addr: SocketAddr, method: &str, path: &str, patience: Duration) -> Result<Response> {
    let mut stream = TcpStream::connect_timeout(&addr, patience).context("connect")?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    stream.write_all(&request(method, path)).context("send")?;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some((response, _)) = parse(&bytes)? {
            return Ok(response);
        }
        let got = stream.read(&mut piece).with_context(|| format!("{method} {path}"))?;
        ensure!(got > 0, "{method} {path}: the server closed the connection");
        bytes.extend_from_slice(&piece[..got]);
    }
}

/// As [`ask`], and the answer must be a 200; gives its text.
///
/// # Errors
/// Another status, or no answer.
pub fn ask_text(addr: SocketAddr, method: &str, path: &str, patience: Duration) -> Result<String> {
    let response = ask(addr, method, path, patience)?;
    let text = String::from_utf8_lossy(&response.body).into_owned();
    let start: String = text.chars().take(200).collect();
    ensure!(response.status == 200, "{method} {path}: status {} {start:?}", response.status);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_taken_as_a_whole_or_not_at_all() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\n\r\n",
        ] {
            for cut in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..cut]).expect("a start"), None, "{cut}");
            }
            let more = format!("{text}HTTP/1.1 500");
            let (response, length) = parse(more.as_bytes()).expect("one").expect("a whole one");
            assert_eq!((response.status, length), (200, text.len()));
            assert_eq!(response.body, b"hello");
        }
    }

    #[test]
    fn what_breaks_the_framing_is_an_error() {
        for text in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "SSH-2.0 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabcd",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
