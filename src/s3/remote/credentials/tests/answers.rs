//! Sources that answer anything: what they say is a credential or an error, in bounded time and
//! memory, and never a panic.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// A server, and what it says to all.
type Source = (Server, Arc<Mutex<(u16, String)>>);

/// The one of these tests.
fn source() -> &'static Source {
    static SOURCE: OnceLock<Source> = OnceLock::new();
    SOURCE.get_or_init(|| {
        let said = Arc::new(Mutex::new((500, String::new())));
        let says = said.clone();
        (Server::start(move |_| says.lock().expect("no panic with it").clone()), said)
    })
}

/// One for each kind of answer that is read.
fn signers(url: &str) -> Vec<Signer> {
    let host = url.trim_start_matches("http://");
    let azure = SignerKind::Azure { account: "account".to_owned() };
    vec![
        s3(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{url}/credentials"))]),
        s3(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)]),
        signer_of_google(&[("HOME", "/nonexistent"), ("GCE_METADATA_HOST", host)]),
        signer(azure, &[("AZURE_IMDS_ENDPOINT", &format!("{url}/identity"))]),
    ]
}

/// Lets each source say this, and judges what comes of it.
fn judge(status: u16, text: &str, verdict: impl Fn(Result<http::HeaderMap, String>)) {
    let (server, said) = source();
    *said.lock().expect("no panic with it") = (status, text.to_owned());
    for signer in signers(&server.url) {
        verdict(run(async move { signed(&signer).await.map_err(|error| error.to_string()) }));
    }
}

/// Sound answers, whole or damaged, and others.
fn words() -> impl Strategy<Value = String> {
    let sound = prop::sample::select(vec![
        aws_json("AK1"),
        r#"{"access_token":"ya29.token","expires_in":3599,"token_type":"Bearer"}"#.to_owned(),
        r#"{"access_token":"managed","expires_on":"1900000000"}"#.to_owned(),
    ]);
    let pieces = prop::sample::select(vec![
        "\"", "{", "}", "[", "null", "1e999", "-1", "\\u0000", "\\ud800", "é", "\r\n", "[[[[[[",
        ",",
    ]);
    let changes = proptest::collection::vec((any::<Index>(), pieces, any::<bool>()), 0..5);
    let changed = (sound, changes).prop_map(|(mut text, changes)| {
        for (at, piece, cuts) in changes {
            let ends = text.char_indices().map(|(at, _)| at).collect::<Vec<_>>();
            let at = if ends.is_empty() { 0 } else { ends[at.index(ends.len())] };
            if cuts {
                text.truncate(at);
            }
            text.insert_str(at, piece);
        }
        text
    });
    prop_oneof![4 => changed, 1 => ".{0,200}"]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_source_says_is_a_credential_or_an_error(
        text in words(),
        status in prop::sample::select(vec![200_u16, 200, 200, 204, 302, 404, 500]),
    ) {
        let _one_at_a_time = turn();
        judge(status, &text, |ended| match ended {
            Ok(headers) => assert!(status < 300 && headers.contains_key("authorization"), "{text:?}"),
            Err(error) => assert!(!error.is_empty() && error.len() < 4_096, "{error:?}"),
        });
    }
}

fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn long_and_deep_answers_of_sources_are_errors_at_once() {
    let _one_at_a_time = turn();
    let long = format!("{{\"access_token\":\"{}\"}}", "x".repeat(3 << 20));
    let deep = "[".repeat(900_000);
    for text in [long, deep] {
        let begin = Instant::now();
        judge(200, &text, |ended| {
            let error = ended.expect_err("it is no credential");
            assert!(error.len() < 4_096, "{} bytes of an error", error.len());
        });
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }
}
