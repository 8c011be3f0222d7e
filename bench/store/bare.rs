//! The floor: the same requests on hyper connections that are kept alive, with nothing around them.
//!
//! Each worker has a connection and a key of its own, and signs once. A connection that the store
//! has closed is made anew before a request.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use celld_rt::hyper_io::HyperIo;
use celld_stores::BUCKET;
use http::header::{CONTENT_LENGTH, ETAG, HOST, HeaderValue, IF_MATCH};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};

use crate::target::{Client, Target, Verb, key};

/// One connection.
pub struct Bare {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    path: String,
    headers: HeaderMap,
    etag: Option<HeaderValue>,
}

impl Bare {
    /// Opens it.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub async fn open(target: &Target, worker: usize) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, target.port));
        let sender = connect(address).await?;
        let key = key("bare", worker);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::try_from(address.to_string())?);
        for (name, value) in target.signed(&key) {
            headers.insert(name, HeaderValue::try_from(value)?);
        }
        Ok(Self { address, sender, path: format!("/{BUCKET}/{key}"), headers, etag: None })
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let stream = celld_rt::net::connect(&[address], Duration::from_secs(5)).await?;
    let (sender, connection) = handshake(HyperIo::new(stream)).await?;
    celld_rt::spawn(async move {
        // Its end is seen by who sends.
        let _ended = connection.await;
    });
    Ok(sender)
}

impl Client for Bare {
    async fn write(&mut self, verb: Verb, body: Bytes) -> Result<()> {
        let length = body.len();
        let mut request = Request::put(self.path.as_str()).body(Full::new(body))?;
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.insert(CONTENT_LENGTH, length.into());
        match verb {
            Verb::Put => {}
            Verb::Swap => {
                let etag = self.etag.clone().context("nothing was written yet")?;
                headers.insert(IF_MATCH, etag);
            }
        }
        if self.sender.ready().await.is_err() {
            self.sender = connect(self.address).await?;
        }
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        ensure!(head.status == 200, "{}: {}", head.status, String::from_utf8_lossy(&body));
        self.etag = Some(head.headers.get(ETAG).context("no ETag")?.clone());
        Ok(())
    }
}
