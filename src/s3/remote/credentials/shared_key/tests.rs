//! Signatures against the library's signer.

use http::Request;
use reqsign_azure_storage::{RequestSigner, StaticCredentialProvider};
use reqsign_core::{Context, Signer};

use super::*;

const KEY: &str = "YWNjb3VudCBrZXk=";

#[test]
fn the_library_signs_the_same_requests_equally() {
    celld_rt::block_on(async {
        for (account, request, body) in [
            ("a1", Request::get("https://a1.example/c/a%20b/%C3%A9?comp=list&prefix=a%2Fb"), ""),
            ("a1", Request::put("https://a1.example/c/k").header("if-none-match", "*"), "body"),
            (
                "devstoreaccount1",
                Request::put(
                    "http://127.0.0.1:10000/devstoreaccount1/c/k?comp=block&blockid=YQ%3D%3D",
                )
                .header("if-match", "\"0x8D\"")
                .header("x-ms-blob-type", "BlockBlob"),
                "1",
            ),
            ("a1", Request::get("https://a1.example/c/k").header("range", "bytes=1-2"), ""),
            ("a1", Request::delete("https://a1.example/c/k"), ""),
        ] {
            let mut request = request.header("x-ms-version", "2021-08-06");
            if !body.is_empty() {
                request = request.header("content-length", body.len());
            }
            let mut theirs = request.body(()).expect("a request").into_parts().0;
            let mut ours = theirs.clone();
            let library = Signer::new(
                Context::new(),
                StaticCredentialProvider::new_shared_key(account, KEY),
                RequestSigner::new(),
            );
            library.sign(&mut theirs, None).await.expect("a signature");
            let date = theirs.headers["x-ms-date"].to_str().expect("text");
            let now = celld_rt::wall_ms();
            let at = [now, now - 1_000].into_iter().find(|&at| http_date_of(at) == date);
            let key = SharedKey::new(account.to_owned(), KEY).expect("a key");
            key.sign(&mut ours, &Bytes::from(body), at.expect("just now")).expect("a signature");
            assert_eq!(ours.headers[AUTHORIZATION], theirs.headers[AUTHORIZATION], "{ours:?}");
        }
    });
}

#[test]
fn a_key_that_is_none_is_refused() {
    let new = |account: &str, key| SharedKey::new(account.to_owned(), key).map(drop);
    assert!(new("a1", KEY).is_ok() && new("a1", " YQ== \n").is_ok());
    for (account, key) in [("a1", ""), ("a1", "!"), ("", KEY), ("a/b", KEY)] {
        assert!(new(account, key).is_err(), "{account:?} {key:?}");
    }
}
