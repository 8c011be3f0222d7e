//! `celld diagnose` on machines of Amazon and Google: the store, and who gives credentials, are at
//! the names and addresses that the clouds have fixed, by TLS where theirs are. Nothing but the URL
//! of the bucket is said.
//!
//! Machines are hosts of a network on this one, which only root can make.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use celld_stores::{
    ACCESS_KEY, AMAZON, BUCKET, Cloud, GOOGLE, Host, Kind, Network, REGION, SECRET_KEY, Store,
};
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::stores::{document, faults};

/// Where Amazon has the agent of a container.
const AGENT: Ipv4Addr = Ipv4Addr::new(169, 254, 170, 2);
/// Where both have the metadata of a machine.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Where Google exchanges proofs for tokens.
const ACCOUNTS: &str = "oauth2.googleapis.com";
const TOKEN: &str = "ya29.a-token-of-nobody";

/// A machine that runs the program.
struct Machine {
    host: Host,
    dir: TempDir,
}

impl Machine {
    /// One that knows these names only.
    fn new(network: &Arc<Network>, name: &str, names: &[(&str, Ipv4Addr)]) -> Self {
        let machine = Self {
            host: network.host(name).expect("a host"),
            dir: tempfile::tempdir().expect("a directory"),
        };
        let line = |(name, address): &(&str, Ipv4Addr)| format!("{address} {name}\n");
        let text: String = names.iter().map(line).collect();
        fs::write(machine.path("hosts"), text).expect("a file");
        machine
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// With these settings, and no others.
    fn diagnose(&self, url: &str, settings: &[(&str, &str)]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
        command.env_clear().env("HOME", self.dir.path()).envs(settings.iter().copied());
        command.args(["diagnose", "--json", "--bucket", url, "--state", &self.path("state")]);
        command.arg("--ca-file").arg(Cloud::authority());
        self.host.takes_with_names(&mut command, Path::new(&self.path("hosts")));
        document(&command.output().expect("the program starts"))
    }
}

/// All that was asked of a server: first lines.
type Asked = Arc<Mutex<Vec<String>>>;

/// Answers all requests to an address of a host, each on a connection of its own, with a status and
/// a body. A port of 443 speaks TLS.
fn serve(
    host: &Host,
    (address, port): (Ipv4Addr, u16),
    answer: impl Fn(&str) -> (u16, String) + Send + 'static,
) -> Asked {
    let listener = host.on(|| TcpListener::bind((address, port)).expect("a free port"));
    let asked = Asked::default();
    let (kept, config) = (asked.clone(), tls());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is no fault of the server's.
            let _gone = if port == 443 {
                let connection = ServerConnection::new(config.clone()).expect("a configuration");
                exchange(&mut StreamOwned::new(connection, stream), &kept, &answer)
            } else {
                exchange(&mut { stream }, &kept, &answer)
            };
        }
    });
    asked
}

fn tls() -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server.key")).expect("PEM");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the versions of ring")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key);
    Arc::new(config.expect("key and certificate belong together"))
}

fn exchange(
    stream: &mut (impl Read + Write),
    asked: &Asked,
    answer: impl Fn(&str) -> (u16, String),
) -> io::Result<()> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |length| length.trim().parse().expect("a length"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    bytes.extend_from_slice(&body);
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
    asked.lock().expect("no panic").push(line.to_owned());
    let (status, body) = answer(&text);
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: ");
    stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes())?;
    stream.flush()
}

/// Whether a request has this header.
fn has(request: &str, name: &str, value: &str) -> bool {
    let mut fields = request.lines().filter_map(|line| line.split_once(": "));
    fields.any(|(seen, said)| seen.eq_ignore_ascii_case(name) && said == value)
}

/// What Amazon's servers give to a role.
fn keys(secret: &str) -> String {
    // SeaweedFS knows no sessions of others, so that the token is empty.
    json!({
        "Code": "Success", "AccessKeyId": ACCESS_KEY, "SecretAccessKey": secret, "Token": "",
        "Expiration": "2100-01-01T00:00:00Z",
    })
    .to_string()
}

/// The metadata of a machine of Amazon's: for those only who have fetched a token before.
fn metadata_of_amazon(asked: &str) -> (u16, String) {
    let is_shown = has(asked, "x-aws-ec2-metadata-token", "of-this-session");
    match asked.split(" HTTP/1.1").next().unwrap_or_default() {
        "PUT /latest/api/token" if has(asked, "x-aws-ec2-metadata-token-ttl-seconds", "21600") => {
            (200, "of-this-session".to_owned())
        }
        "GET /latest/meta-data/iam/security-credentials/" if is_shown => (200, "node".to_owned()),
        "GET /latest/meta-data/iam/security-credentials/node" if is_shown => {
            (200, keys(SECRET_KEY))
        }
        _ => (401, String::new()),
    }
}

/// A fleet may run there: the store has kept all rules, and nothing stands in the way.
fn assert_good(seen: &Value, what: &str) {
    assert_eq!(faults(seen), [].into(), "{what}: {seen:#}");
    assert_eq!(seen["store"]["rules_kept"], 11, "{what}: {seen:#}");
}

/// Nobody may use it, for this reason.
fn assert_denied(seen: &Value, why: &str) {
    assert_eq!(faults(seen), ["store.denied".to_owned()].into(), "{seen:#}");
    let text = seen["findings"].to_string();
    assert!(text.contains(why), "{why:?} is not in {text}");
}

#[test]
fn machines_and_containers_of_amazon_have_keys_for_the_bucket_whose_name_is_in_its_host() {
    let Some(network) = Network::permitted() else { return };
    if !Store::is_installed(Kind::Seaweed) {
        return;
    }
    let amazon = network.host("amazon").expect("a host");
    let _store = Store::start_in(Cloud::Amazon, &amazon).expect("a store");
    let names = [(AMAZON, amazon.address())];
    let url = format!("s3://{BUCKET}/diagnose");
    let region = ("AWS_REGION", REGION);

    let machine = Machine::new(&network, "machine", &names);
    machine.host.has_also(METADATA);
    let asked = serve(&machine.host, (METADATA, 80), metadata_of_amazon);
    assert_good(&machine.diagnose(&url, &[region]), "instance metadata");
    let role = "GET /latest/meta-data/iam/security-credentials/";
    let wanted = ["PUT /latest/api/token", role, &format!("{role}node")];
    assert_eq!(*asked.lock().expect("no panic"), wanted);
    let off = machine.diagnose(&url, &[region, ("AWS_EC2_METADATA_DISABLED", "true")]);
    assert_denied(&off, "no credential for s3");

    let task = Machine::new(&network, "task", &names);
    task.host.has_also(AGENT);
    let asked = serve(&task.host, (AGENT, 80), |asked| {
        match asked.split(" HTTP/1.1").next().unwrap_or_default() {
            "GET /v2/credentials/ours" => (200, keys(SECRET_KEY)),
            "GET /v2/credentials/another" => (200, keys("of another")),
            _ => (404, String::new()),
        }
    });
    let uri = |path| [region, ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", path)];
    assert_good(&task.diagnose(&url, &uri("/v2/credentials/ours")), "container");
    assert_eq!(*asked.lock().expect("no panic"), ["GET /v2/credentials/ours"]);
    // The store looks at the keys, so that it was these that were good.
    let denied = task.diagnose(&url, &uri("/v2/credentials/another"));
    assert_denied(&denied, "SignatureDoesNotMatch");
}

/// Gives [`TOKEN`] for a proof that the key of `tests/tls/account.key` has signed.
fn accounts(asked: &str) -> (u16, String) {
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/account.key")).expect("PEM");
    let key = RsaKeyPair::from_pkcs8(key.secret_der()).expect("a key");
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key().as_ref());
    let decoded = |text: &str| base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text).ok();
    let check = || {
        let (_, proof) = asked.split_once("assertion=")?;
        let proof = proof.split('&').next()?;
        let (signed, signature) = proof.rsplit_once('.')?;
        key.verify(signed.as_bytes(), &decoded(signature)?).ok()?;
        let (_, claims) = signed.split_once('.')?;
        serde_json::from_slice::<Value>(&decoded(claims)?).ok()
    };
    match check() {
        Some(claims)
            if claims["iss"] == "node@project.iam.gserviceaccount.com"
                && claims["aud"] == format!("https://{ACCOUNTS}/token") =>
        {
            (200, json!({"access_token": TOKEN, "expires_in": 3_599}).to_string())
        }
        Some(_) | None => (400, json!({"error": "invalid_grant"}).to_string()),
    }
}

#[test]
fn machines_and_key_files_of_google_have_tokens_for_its_buckets() {
    let Some(network) = Network::permitted() else { return };
    if !Store::is_installed(Kind::Gcsxml) {
        return;
    }
    let [google, account] = ["google", "account"].map(|name| network.host(name).expect("a host"));
    let _store = Store::start_in(Cloud::Google(TOKEN), &google).expect("a store");
    let exchanged = serve(&account, (account.address(), 443), accounts);
    let names = [
        (GOOGLE, google.address()),
        (ACCOUNTS, account.address()),
        ("metadata.google.internal", METADATA),
    ];
    let url = format!("gs://{BUCKET}/diagnose");

    let machine = Machine::new(&network, "machine", &names);
    machine.host.has_also(METADATA);
    let asked = serve(&machine.host, (METADATA, 80), |asked| {
        if !has(asked, "metadata-flavor", "Google") {
            return (403, String::new());
        }
        (200, json!({"access_token": TOKEN, "expires_in": 3_599}).to_string())
    });
    assert_good(&machine.diagnose(&url, &[]), "metadata server");
    let asked = asked.lock().expect("no panic").clone();
    let path = "GET /computeMetadata/v1/instance/service-accounts/default/token?";
    assert!(asked.len() == 1 && asked[0].starts_with(path), "{asked:?}");

    let elsewhere = Machine::new(&network, "elsewhere", &names);
    let file = elsewhere.path("key.json");
    let write_key = |of: &str| {
        let key = json!({
            "type": "service_account", "client_email": of,
            "private_key": include_str!("../tls/account.key"), "private_key_id": "1",
            "token_uri": format!("https://{ACCOUNTS}/token"),
        });
        fs::write(&file, key.to_string()).expect("a file");
    };
    write_key("node@project.iam.gserviceaccount.com");
    let settings = [("GOOGLE_APPLICATION_CREDENTIALS", file.as_str())];
    assert_good(&elsewhere.diagnose(&url, &settings), "key file");
    assert_eq!(*exchanged.lock().expect("no panic"), ["POST /token"]);
    write_key("stranger@project.iam.gserviceaccount.com");
    assert_denied(&elsewhere.diagnose(&url, &settings), "invalid_grant");

    // The store takes this token only, so that it was the one that was good.
    let stranger = Machine::new(&network, "stranger", &names);
    stranger.host.has_also(METADATA);
    let other = json!({"access_token": "ya29.another", "expires_in": 3_599}).to_string();
    serve(&stranger.host, (METADATA, 80), move |_| (200, other.clone()));
    assert_denied(&stranger.diagnose(&url, &[]), "AuthenticationRequired");
}
