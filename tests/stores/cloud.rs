//! Stores where clouds have them: by TLS, at port 443, under the names that their clients know, so
//! that nothing but the bucket's URL says where it is.
//!
//! The certificates of `tests/tls` have these names, and only who is told trusts their authority.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::store::Kind;

/// Where Amazon has [`BUCKET`](crate::BUCKET) of [`REGION`](crate::REGION): its name is in the host's.
pub const AMAZON: &str = "celld-test.s3.us-east-1.amazonaws.com";
/// Where Google has all buckets.
pub const GOOGLE: &str = "storage.googleapis.com";

/// Whose place a store takes.
#[derive(Clone, Copy, Debug)]
pub enum Cloud<'a> {
    /// SeaweedFS takes it: it looks at signatures, and at the host for the bucket's name.
    Amazon,
    /// `gcsxml.py` takes it, for those only who show this bearer token.
    Google(&'a str),
}

impl Cloud<'_> {
    /// The authority that who uses it has to trust, in PEM.
    pub fn authority() -> PathBuf {
        certificates().join("authority.pem")
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Amazon => Kind::Seaweed,
            Self::Google(_) => Kind::Gcsxml,
        }
    }

    /// What an unsigned request of ours shows.
    pub(crate) fn header(self) -> Option<(&'static str, String)> {
        match self {
            Self::Amazon => None,
            Self::Google(token) => Some(("Authorization", format!("Bearer {token}"))),
        }
    }

    /// What the program of its store is told beside the rest.
    pub(crate) fn arguments(self) -> Vec<OsString> {
        let (port, certificate, key, own) = match self {
            Self::Amazon => {
                let suffix = AMAZON.split_once('.').map_or(AMAZON, |(_, suffix)| suffix);
                let own = format!("-s3.domainName={suffix}");
                ("-s3.port.https=443", "-s3.cert.file=", "-s3.key.file=", own)
            }
            Self::Google(token) => {
                ("--tls-listen=443", "--certificate=", "--key=", format!("--bearer={token}"))
            }
        };
        let file = |flag: &str, name: &str| {
            let mut argument = OsString::from(flag);
            argument.push(certificates().join(name));
            argument
        };
        vec![port.into(), file(certificate, "server.pem"), file(key, "server.key"), own.into()]
    }
}

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls")
}
