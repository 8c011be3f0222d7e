//! What a node says of itself: the health document and the lines of its log.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::body::{Flow, HttpBody};

/// Shared by the threads of a node; read only when somebody asks for it.
pub(crate) struct Status(Mutex<Health>);

/// The document at `/.well-known/celld/health`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Health {
    status: Phase,
    node: String,
    session: String,
    celld: &'static str,
    shards: usize,
    /// The version that serves.
    version: Option<String>,
    /// A newer version that cannot serve, and why.
    rejected: Option<Rejected>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Starting,
    Serving,
    Draining,
}

#[derive(Clone, Debug, Serialize)]
struct Rejected {
    version: String,
    error: String,
}

impl Status {
    pub fn new(node: String, session: String, shards: usize) -> Self {
        Self(Mutex::new(Health {
            status: Phase::Starting,
            node,
            session,
            celld: env!("CARGO_PKG_VERSION"),
            shards,
            version: None,
            rejected: None,
        }))
    }

    /// A version serves on every shard.
    pub fn serves(&self, version: &str) {
        self.change(|health| {
            if health.status == Phase::Starting {
                health.status = Phase::Serving;
            }
            health.version = Some(version.to_owned());
            health.rejected = None;
        });
    }

    /// The version that serves.
    pub fn version(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).version.clone()
    }

    /// A version does not load; what served before goes on.
    pub fn rejects(&self, version: &str, error: &str) {
        self.change(|health| {
            let (version, error) = (version.to_owned(), error.to_owned());
            health.rejected = Some(Rejected { version, error });
        });
    }

    /// The node is stopping: load balancers should go elsewhere.
    pub fn drains(&self) {
        self.change(|health| health.status = Phase::Draining);
    }

    fn change(&self, act: impl FnOnce(&mut Health)) {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// 200 while it serves, 503 otherwise.
    pub fn health_response(&self) -> Response<HttpBody> {
        let health = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = serde_json::to_vec_pretty(&health).expect("plain fields become JSON");
        text.push(b'\n');
        let mut response = Response::new(HttpBody(Flow::Bytes(Bytes::from(text))));
        if health.status != Phase::Serving {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
