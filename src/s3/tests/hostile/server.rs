//! A server that answers every request with the same words, whatever it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// What it says.
#[derive(Debug)]
pub enum Words {
    /// These bytes, and then the connection ends.
    Once(Vec<u8>),
    /// This head, and then chunks until the client has enough.
    Endless(String),
    /// A listing of so many keys, a thousand at a time, from token to token.
    Pages {
        /// `key-000000` and so on.
        keys: usize,
    },
    /// Of every object that it has so many bytes, all zero; and that what is written in parts is
    /// taken. It keeps nothing.
    Zeros {
        /// Of each object.
        size: u64,
    },
}

/// It serves until it is dropped.
pub struct Server {
    port: u16,
    stop: Arc<()>,
}

impl Server {
    /// On a free port.
    pub fn start(words: Words) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = Arc::new(());
        let (alive, words) = (Arc::downgrade(&stop), Arc::new(words));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), Some(_)) = (stream, alive.upgrade()) else { return };
                let words = words.clone();
                std::thread::spawn(move || {
                    // The client may have had enough.
                    let _ended = serve(stream, &words);
                });
            }
        });
        Self { port, stop }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = Arc::new(());
        // Wakes the thread that accepts, which sees that nobody wants it any more.
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(stream: TcpStream, words: &Words) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    loop {
        let (mut line, mut length, mut range) = (String::new(), 0, String::new());
        input.read_line(&mut line)?;
        let method = line.split(' ').next().unwrap_or_default().to_owned();
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
            if name.eq_ignore_ascii_case("range") {
                range = value.trim().to_owned();
            }
        }
        std::io::copy(&mut input.by_ref().take(length), &mut std::io::sink())?;
        match words {
            Words::Once(bytes) => return output.write_all(bytes),
            Words::Endless(head) => {
                output.write_all(head.as_bytes())?;
                let chunk = format!("10000\r\n{}\r\n", "<a>x</a>".repeat(0x10000 / 8));
                loop {
                    output.write_all(chunk.as_bytes())?;
                }
            }
            Words::Pages { keys } => output.write_all(&page(&target, *keys))?,
            Words::Zeros { size } if method == "GET" => zeros(&mut output, &range, *size)?,
            Words::Zeros { .. } => output.write_all(&taken(&target))?,
        }
    }
}

/// Those bytes of an object that `range` names.
fn zeros(output: &mut TcpStream, range: &str, size: u64) -> std::io::Result<()> {
    let (start, last) = range.trim_start_matches("bytes=").split_once('-').unwrap_or_default();
    let (start, last): (u64, u64) = (start.parse().unwrap_or(0), last.parse().unwrap_or(0));
    let length = size.min(last + 1) - start;
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Length: {length}\r\n\
         Content-Range: bytes {start}-{}/{size}\r\n\r\n",
        start + length - 1
    );
    output.write_all(head.as_bytes())?;
    std::io::copy(&mut std::io::repeat(0).take(length), output)?;
    Ok(())
}

/// To a write of any kind.
fn taken(target: &str) -> Vec<u8> {
    let (headers, body) = if target.ends_with("?uploads=") {
        let id = "<UploadId>1</UploadId>";
        ("", format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>"))
    } else if target.contains("partNumber=") {
        ("ETag: \"1\"\r\n", String::new())
    } else {
        let etag = "<ETag>1</ETag>";
        ("", format!("<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>"))
    };
    answer("200 OK", "application/xml", headers, &body)
}

/// The thousand keys that the token in `target` names.
fn page(target: &str, keys: usize) -> Vec<u8> {
    let token = target.split_once("continuation-token=").map_or("0", |(_, rest)| rest);
    let start = token.split('&').next().and_then(|token| token.parse().ok()).unwrap_or(0);
    let end = keys.min(start + 1_000);
    let names: Vec<String> = (start..end).map(|n| format!("key-{n:06}")).collect();
    let next = (end < keys).then(|| end.to_string());
    listing(&names, next.as_deref())
}

/// An answer with a length.
pub fn answer(status: &str, content: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A listing of these keys; `next`: there is more behind it.
pub fn listing(keys: &[String], next: Option<&str>) -> Vec<u8> {
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    match next {
        None => xml.push_str("<IsTruncated>false</IsTruncated>"),
        Some(token) => xml.push_str(&format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
        )),
    }
    for key in keys {
        let key = key.replace('&', "&amp;").replace('<', "&lt;");
        xml.push_str(&format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
    }
    answer("200 OK", "application/xml", "", &(xml + "</ListBucketResult>"))
}
