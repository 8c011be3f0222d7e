//! A client for HTTP/1.1: one connection that stays open, blocking, every wait bounded.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any answer of a node that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection.
pub struct Client(BufReader<TcpStream>);

/// What came back.
#[derive(Debug)]
pub struct Response {
    /// Of the first line.
    pub status: u16,
    /// Whole.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }

    /// The body of an answer that must be a good one.
    ///
    /// # Panics
    /// It is not.
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.status, 200, "{}", self.text());
        self.body
    }
}

impl Client {
    /// Opens a connection.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// The connection broke, or there is no answer.
    pub fn ask(&mut self, method: &str, path: &str) -> io::Result<Response> {
        self.send(method, path)?;
        self.receive()
    }

    /// Asks, and leaves the answer to [`Client::receive`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, method: &str, path: &str) -> io::Result<()> {
        let length = if method == "GET" { "" } else { "content-length: 0\r\n" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{length}\r\n");
        self.0.get_mut().write_all(head.as_bytes())
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The connection broke or ended, or the answer makes no sense.
    pub fn receive(&mut self) -> io::Result<Response> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| bad(&first))?;
        let mut length = None;
        let mut is_chunked = false;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok();
            }
            is_chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        if is_chunked {
            while self.chunk(&mut body)? {}
        } else {
            body.resize(length.ok_or_else(|| bad("an answer without a length"))?, 0);
            self.0.read_exact(&mut body)?;
        }
        Ok(Response { status, body })
    }

    /// Whether there is anything to read within `limit`: bytes, or the end of the connection.
    ///
    /// # Errors
    /// The connection broke.
    pub fn hears_within(&mut self, limit: Duration) -> io::Result<bool> {
        self.0.get_ref().set_read_timeout(Some(limit))?;
        let heard = match self.0.fill_buf() {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        };
        self.0.get_ref().set_read_timeout(Some(PATIENCE))?;
        heard
    }

    fn chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        let line = self.line()?;
        let size = usize::from_str_radix(line.trim(), 16);
        let size = size.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, line))?;
        let start = body.len();
        body.resize(start + size, 0);
        self.0.read_exact(&mut body[start..])?;
        self.line()?;
        Ok(size > 0)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}
