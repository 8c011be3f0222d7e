//! Signatures of S3 (SigV4) that are not made by the client under test.
//!
//! Source: "Signature Version 4", Amazon S3 API reference. The body is not signed, nor any header
//! but the host's and the two that must be, so that one signature serves for many requests on one
//! key within its fifteen minutes.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::{digest, hmac};

use crate::store::{ACCESS_KEY, REGION, SECRET_KEY};

/// Headers of a request for `target` (a path of unreserved signs and slashes, without a query).
pub(crate) fn headers(method: &str, host: &str, target: &str) -> Vec<(&'static str, String)> {
    let stamp = stamp();
    let day = &stamp[..8];
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    let names = "host;x-amz-content-sha256;x-amz-date";
    let request = format!(
        "{method}\n{target}\n\nhost:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n\
         x-amz-date:{stamp}\n\n{names}\nUNSIGNED-PAYLOAD"
    );
    let sum = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let to_sign = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sum}");
    let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
    for part in [day, REGION, "s3", "aws4_request", &to_sign] {
        let signing = hmac::Key::new(hmac::HMAC_SHA256, &key);
        key = hmac::sign(&signing, part.as_bytes()).as_ref().to_vec();
    }
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={}",
        hex(&key)
    );
    vec![
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD".to_owned()),
        ("x-amz-date", stamp),
        ("authorization", authorization),
    ]
}

/// Now, as `20130524T000000Z`.
fn stamp() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let now = libc::time_t::try_from(now).expect("a time of this age");
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both live through the call, which fills `parts`; all zeros are a valid `tm` anyway.
    let parts = unsafe {
        libc::gmtime_r(&raw const now, parts.as_mut_ptr());
        parts.assume_init()
    };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = parts;
    format!(
        "{:04}{:02}{tm_mday:02}T{tm_hour:02}{tm_min:02}{tm_sec:02}Z",
        tm_year + 1_900,
        tm_mon + 1
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}
