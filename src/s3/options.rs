//! How a bucket is reached: what its URL does not say.

use std::path::PathBuf;
use std::time::Duration;

/// What [`Bucket::open_with`](crate::Bucket::open_with) needs beside the URL. A directory needs
/// nothing of it.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// `http://host:port` or `https://host`: another server than the dialect's own, or the one
    /// that the environment names. The name of the bucket is then in the path.
    pub endpoint: Option<String>,
    /// The region that signatures name. `auto` for stores that have none.
    pub region: Option<String>,
    /// A PEM file with authorities that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Keys to sign with, in place of those that the environment offers.
    pub keys: Option<StaticKeys>,
    /// Plain reads and writes that take longer than nearly all before them are sent a second time,
    /// five of a hundred at most. For stores whose slow answers come by chance; a store that is
    /// slow because it has too much to do becomes no faster.
    pub hedge: bool,
}

/// Keys that are known beforehand.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticKeys {
    /// Public: an access key's name, or an account's.
    pub id: String,
    /// Secret.
    pub secret: String,
    /// Of temporary keys.
    pub token: Option<String>,
}

impl std::fmt::Debug for StaticKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StaticKeys({}, …)", self.id)
    }
}

impl OpenOptions {
    /// What the environment says for all stores: `AWS_REGION`, `AWS_DEFAULT_REGION`;
    /// `AWS_CA_BUNDLE`. Endpoints are each dialect's own.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            names.iter().filter_map(|name| get(name)).find(|value| !value.is_empty())
        };
        Self {
            endpoint: None,
            region: first(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            ca_file: first(&["AWS_CA_BUNDLE"]).map(PathBuf::from),
            keys: None,
            hedge: false,
        }
    }
}

/// Whose connections a request takes. Those of one lane never wait for those of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Segments, restores, records of cells: as many as there is work.
    #[default]
    Data,
    /// The node's right to serve: few requests, and none may wait.
    Lease,
}

/// How long a verb may take, and how often it may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the whole verb; of each part of an object that is too large for one request.
    pub deadline: Duration,
    /// Of a verb that may be repeated. A conditional write is sent once, whatever this says.
    pub attempts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // The slowest store that we know takes 35 s for a contended write; callers that cannot
        // wait so long say so.
        Self { deadline: Duration::from_secs(40), attempts: 6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_special_variable_wins_and_empty_ones_do_not_count() {
        let options = OpenOptions::from_variables(|name| match name {
            "AWS_REGION" => Some(String::new()),
            "AWS_DEFAULT_REGION" => Some("eu-1".into()),
            _ => None,
        });
        assert_eq!(options.region.as_deref(), Some("eu-1"));
        assert_eq!(options.ca_file, None);
    }
}
