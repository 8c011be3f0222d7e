//! The sources, on servers and files that play the clouds'.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;

use super::loopback::{Asked, Server};
use super::*;

/// A URL where nobody listens: the port was free a moment ago.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}", listener.local_addr().expect("its address"))
}

fn signer(kind: SignerKind, settings: &[(&str, &str)]) -> Signer {
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let environment = Environment::of(settings);
    Signer::new(kind, Sources { environment, tls: celld_rt::http_client::tls_config(), keys: None })
}

fn s3(settings: &[(&str, &str)]) -> Signer {
    // Nothing of the machine that runs the test.
    let mut all = vec![("HOME", "/nonexistent")];
    all.extend_from_slice(settings);
    signer(SignerKind::S3 { region: "eu-west-1".to_owned() }, &all)
}

fn run<T: 'static>(work: impl Future<Output = T> + 'static) -> T {
    celld_rt::block_on(work)
}

/// The headers of a request that is signed now.
async fn signed(signer: &Signer) -> Result<http::HeaderMap, CredentialError> {
    signed_at(signer, celld_rt::wall_ms()).await
}

async fn signed_at(signer: &Signer, wall_ms: u64) -> Result<http::HeaderMap, CredentialError> {
    let request = Request::get("http://bucket.example/key").body(()).expect("a request");
    let (mut parts, ()) = request.into_parts();
    signer.sign(&mut parts, &Bytes::new(), wall_ms).await?;
    Ok(parts.headers)
}

/// The access key that signs now.
async fn key(signer: &Signer) -> String {
    key_at(signer, celld_rt::wall_ms()).await
}

async fn key_at(signer: &Signer, wall_ms: u64) -> String {
    let headers = signed_at(signer, wall_ms).await.expect("a credential");
    let text = headers["authorization"].to_str().expect("text");
    let after = text.split_once("Credential=").expect("an access key").1;
    after.split_once('/').expect("a scope").0.to_owned()
}

async fn error(signer: &Signer) -> String {
    signed(signer).await.expect_err("no credential").to_string()
}

fn in_an_hour() -> String {
    let seconds = i64::try_from(celld_rt::wall_ms() / 1_000 + 3_600).expect("this century");
    reqsign_core::time::Timestamp::from_second(seconds).expect("a time").format_rfc3339_zulu()
}

fn aws_json(id: &str) -> String {
    let ends = in_an_hour();
    format!(
        r#"{{"Code":"Success","AccessKeyId":"{id}","SecretAccessKey":"secret","Token":"session-{id}",
            "Expiration":"{ends}"}}"#
    )
}

fn sts_xml(action: &str, id: &str) -> String {
    format!(
        "<{action}Response><{action}Result><Credentials><AccessKeyId>{id}</AccessKeyId>\
         <SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>\
         <Expiration>{}</Expiration></Credentials></{action}Result></{action}Response>",
        in_an_hour()
    )
}

/// Hands out `AK1`, `AK2`, ... to those who have fetched a token before.
fn imds() -> Server {
    let given = AtomicUsize::new(0);
    Server::start(move |asked| {
        let has_token = asked.headers.get("x-aws-ec2-metadata-token").is_some_and(|t| t == "T");
        match asked.line.as_str() {
            "PUT /latest/api/token" => (200, "T".into()),
            _ if !has_token => (401, String::new()),
            "GET /latest/meta-data/iam/security-credentials/" => (200, "role".into()),
            "GET /latest/meta-data/iam/security-credentials/role" => {
                (200, aws_json(&format!("AK{}", given.fetch_add(1, Ordering::Relaxed) + 1)))
            }
            _ => (404, String::new()),
        }
    })
}

#[test]
fn instance_metadata_is_renewed_before_its_end_and_no_request_waits_for_it() {
    let server = imds();
    let signer = s3(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url)]);
    run(async move {
        let headers = signed(&signer).await.expect("a credential");
        assert_eq!(headers["x-amz-security-token"], "session-AK1");
        assert!(headers["authorization"].is_sensitive());
        assert_eq!(key(&signer).await, "AK1");
        assert_eq!(server.asked().len(), 3, "kept");
        // An hour is the life of it; the last five minutes are for the next.
        let later = celld_rt::wall_ms() + 56 * 60_000;
        assert_eq!(key_at(&signer, later).await, "AK1", "used while the next one is fetched");
        for _ in 0..1_000 {
            if key_at(&signer, later).await == "AK2" {
                break;
            }
            celld_rt::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(key(&signer).await, "AK2");
        assert_eq!(server.asked().len(), 6);
    });
}

#[test]
fn one_load_serves_the_requests_of_all_shards() {
    let server = imds();
    let signer = s3(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url)]);
    let threads: Vec<_> = (0..4)
        .map(|_| signer.clone())
        .map(|signer| {
            std::thread::spawn(move || {
                run(async move {
                    let tasks: Vec<_> = (0..20)
                        .map(|_| signer.clone())
                        .map(|signer| celld_rt::spawn_joined(async move { key(&signer).await }))
                        .collect();
                    for task in tasks {
                        assert_eq!(task.join().await.as_deref(), Some("AK1"));
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn a_token_file_that_rotates_is_read_for_every_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    let wanted = file.clone();
    let given = AtomicUsize::new(0);
    // As EKS Pod Identity: the token of the moment, in the header as it is.
    let server = Server::start(move |asked| {
        let token = std::fs::read_to_string(&wanted).expect("the file");
        if asked.headers.get("authorization").map(String::as_str) != Some(token.trim()) {
            return (403, "wrong token".into());
        }
        (200, aws_json(&format!("AK{}", given.fetch_add(1, Ordering::Relaxed) + 1)))
    });
    std::fs::write(&file, "first\n").expect("a file");
    let signer = s3(&[
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/v1/credentials", server.url)),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "stale"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().expect("UTF-8")),
    ]);
    run(async move {
        assert_eq!(key(&signer).await, "AK1");
        std::fs::write(&file, "second\n").expect("a file");
        signer.forget();
        assert_eq!(key(&signer).await, "AK2");
        assert_eq!(server.asked()[1].headers["authorization"], "second");
    });
}

#[test]
fn a_container_is_not_asked_in_the_clear_far_away() {
    let signer = s3(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/credentials")]);
    run(async move {
        let text = error(&signer).await;
        assert!(text.contains("only https may leave this machine"), "{text}");
    });
}

#[test]
fn a_web_identity_is_exchanged_and_its_token_is_not_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "eyJ.service.account\n").expect("a file");
    let refused = Arc::new(AtomicUsize::new(0));
    let refusals = refused.clone();
    let server = Server::start(move |asked| {
        let whole = asked.body.contains("WebIdentityToken=eyJ.service.account")
            && asked.body.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr")
            && asked.body.contains("RoleSessionName=celld");
        if refusals.load(Ordering::Relaxed) > 0 || !whole {
            let error = "<Code>AccessDenied</Code><Message>not eyJ.service.account</Message>";
            return (403, format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"));
        }
        (200, sts_xml("AssumeRoleWithWebIdentity", "WEB"))
    });
    let settings = [
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().expect("UTF-8")),
        ("AWS_ENDPOINT_URL_STS", &server.url),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &nowhere()),
    ];
    let (good, bad) = (s3(&settings), s3(&settings));
    run(async move {
        assert_eq!(key(&good).await, "WEB");
        refused.store(1, Ordering::Relaxed);
        let text = error(&bad).await;
        assert!(text.contains("web identity failed: AccessDenied"), "{text}");
        assert!(!text.contains("eyJ"), "{text}");
        // The next source would be another identity.
        assert!(!text.contains("instance metadata"), "{text}");
        drop(directory);
    });
}

/// Both files, as a home has them.
fn home(credentials: &str, config: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join(".aws/sso/cache");
    std::fs::create_dir_all(directory).expect("a directory");
    std::fs::write(home.path().join(".aws/credentials"), credentials).expect("a file");
    std::fs::write(home.path().join(".aws/config"), config).expect("a file");
    home
}

fn at_home(home: &Path, settings: &[(&str, &str)]) -> Signer {
    let mut all = vec![("HOME", home.to_str().expect("UTF-8"))];
    all.extend_from_slice(settings);
    signer(SignerKind::S3 { region: "auto".to_owned() }, &all)
}

const KEYS: &str = "[default]\naws_access_key_id = HOME1\naws_secret_access_key = a/b+c\\d#e\n\n\
                    [other]\naws_access_key_id = OTHER1\naws_secret_access_key = s\n";

#[test]
fn a_profile_is_read_again_after_a_403() {
    let home = home(KEYS, "");
    let signer = at_home(home.path(), &[]);
    let other = at_home(home.path(), &[("AWS_PROFILE", "other")]);
    run(async move {
        assert_eq!(key(&signer).await, "HOME1");
        assert_eq!(key(&other).await, "OTHER1");
        let rotated = KEYS.replace("HOME1", "HOME2");
        std::fs::write(home.path().join(".aws/credentials"), rotated).expect("a file");
        assert_eq!(key(&signer).await, "HOME1", "nothing has refused it");
        signer.forget();
        assert_eq!(key(&signer).await, "HOME2");
    });
}

#[test]
fn a_profile_is_followed_to_a_role_a_program_or_sso() {
    let server = Server::start(|asked: &Asked| match asked.line.as_str() {
        line if line.starts_with("GET /sso?role_name=reader&account_id=12") => {
            assert_eq!(asked.headers["x-amz-sso_bearer_token"], "sso-token");
            let ends = (celld_rt::wall_ms() + 3_600_000).to_string();
            let keys = r#""accessKeyId":"SSO","secretAccessKey":"s","sessionToken":"t""#;
            (200, format!(r#"{{"roleCredentials":{{{keys},"expiration":{ends}}}}}"#))
        }
        line if line.contains("Action=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012") => {
            assert!(asked.headers["authorization"].contains("Credential=OTHER1/"));
            assert!(line.contains("ExternalId=outside"), "{line}");
            (200, sts_xml("AssumeRole", "ASIAROLEROLEROLE"))
        }
        line => panic!("unexpected: {line}"),
    });
    let home = home(
        KEYS,
        "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = other\n\
         external_id = outside\nregion = us-east-2\n\
         [profile program]\ncredential_process = cat HOME/program.json\n\
         [sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://corp.example/start\n\
         [profile sso]\nsso_session = corp\nsso_account_id = 12\nsso_role_name = reader\n",
    );
    let config = home.path().join(".aws/config");
    let text = std::fs::read_to_string(&config).expect("the file");
    let text = text.replace("HOME", home.path().to_str().expect("UTF-8"));
    std::fs::write(&config, text).expect("a file");
    let program = r#"{"Version":1,"AccessKeyId":"PROGRAM","SecretAccessKey":"s"}"#;
    std::fs::write(home.path().join("program.json"), program).expect("a file");
    // SHA-1 of `corp`, as the command line names it.
    let token = format!(r#"{{"accessToken":"sso-token","expiresAt":"{}"}}"#, in_an_hour());
    let cached = ".aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json";
    std::fs::write(home.path().join(cached), token).expect("a file");
    run(async move {
        for (profile, wanted) in
            [("role", "ASIAROLEROLEROLE"), ("program", "PROGRAM"), ("sso", "SSO")]
        {
            let sso = format!("{}/sso", server.url);
            let settings = [
                ("AWS_PROFILE", profile),
                ("AWS_ENDPOINT_URL_STS", &server.url),
                ("AWS_SSO_ENDPOINT", &sso),
            ];
            assert_eq!(key(&at_home(home.path(), &settings)).await, wanted);
        }
    });
}

#[test]
fn a_profile_that_leads_nowhere_is_an_error() {
    let home = home(
        KEYS,
        "[profile lost]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = gone\n\
         [profile one]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = two\n\
         [profile two]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = one\n",
    );
    run(async move {
        for (profile, what) in [
            ("missing", "no such profile"),
            ("lost", "source_profile \"gone\" does not exist"),
            ("one", "goes on for more than 5"),
        ] {
            let text = error(&at_home(home.path(), &[("AWS_PROFILE", profile)])).await;
            assert!(text.contains(what), "{text}");
            assert!(!text.contains("instance metadata"), "{text}");
        }
    });
}

#[test]
fn an_error_names_all_that_was_tried_and_how_it_ended() {
    let endpoint = nowhere();
    let signer = s3(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)]);
    run(async move {
        let text = error(&signer).await;
        for part in [
            "no credential for s3",
            "environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
            "profile \"default\": /nonexistent/.aws/credentials: No such file",
            "/nonexistent/.aws/config: No such file",
            "web identity: AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set",
            "container: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            &format!("instance metadata at {endpoint} failed"),
            &format!("PUT {endpoint}/latest/api/token: "),
            "refused",
            "; set AWS_ACCESS_KEY_ID",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let half = error(&s3(&[("AWS_ACCESS_KEY_ID", "AK")])).await;
        assert!(half.contains("AWS_SECRET_ACCESS_KEY is not"), "{half}");
    });
}

#[test]
fn google_s_metadata_server_gives_a_bearer_token() {
    let server = Server::start(|asked| {
        assert_eq!(asked.headers["metadata-flavor"], "Google");
        let path = "GET /computeMetadata/v1/instance/service-accounts/default/token?";
        assert!(asked.line.starts_with(path), "{}", asked.line);
        (200, r#"{"access_token":"ya29.token","expires_in":3599,"token_type":"Bearer"}"#.into())
    });
    let host = server.url.trim_start_matches("http://").to_owned();
    let home = ("HOME", "/nonexistent");
    let signer = signer_of_google(&[home, ("GCE_METADATA_HOST", &host)]);
    run(async move {
        let headers = signed(&signer).await.expect("a credential");
        assert_eq!(headers["authorization"], "Bearer ya29.token");
        assert!(headers["authorization"].is_sensitive());

        let host = nowhere();
        let host = host.trim_start_matches("http://");
        let text = error(&signer_of_google(&[home, ("GCE_METADATA_HOST", host)])).await;
        for part in ["GS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/", host] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let file = [home, ("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")];
        let text = error(&signer_of_google(&file)).await;
        assert!(text.contains("key file /nonexistent/key.json failed"), "{text}");
    });
}

fn signer_of_google(settings: &[(&str, &str)]) -> Signer {
    signer(SignerKind::Gcs, settings)
}

#[test]
fn azure_s_managed_and_workload_identities_give_a_bearer_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "federated").expect("a file");
    let server = Server::start(|asked| match asked.line.split('?').next() {
        Some("GET /identity") => {
            assert_eq!(asked.headers["metadata"], "true");
            let ends = celld_rt::wall_ms() / 1_000 + 3_600;
            (200, format!(r#"{{"access_token":"managed","expires_on":"{ends}"}}"#))
        }
        Some("POST /tenant/oauth2/v2.0/token") => {
            assert!(asked.body.contains("client_assertion=federated"), "{}", asked.body);
            (200, r#"{"access_token":"workload","expires_in":3600}"#.into())
        }
        other => panic!("unexpected: {other:?}"),
    });
    let kind = SignerKind::Azure { account: "account".to_owned() };
    let managed = format!("{}/identity", server.url);
    let managed = signer(kind.clone(), &[("AZURE_IMDS_ENDPOINT", &managed)]);
    let workload = signer(
        kind.clone(),
        &[
            ("AZURE_TENANT_ID", "tenant"),
            ("AZURE_CLIENT_ID", "client"),
            ("AZURE_FEDERATED_TOKEN_FILE", file.to_str().expect("UTF-8")),
            ("AZURE_AUTHORITY_HOST", &server.url),
        ],
    );
    let nothing = format!("{}/identity", nowhere());
    let nothing = signer(kind, &[("AZURE_IMDS_ENDPOINT", &nothing)]);
    run(async move {
        let headers = signed(&managed).await.expect("a credential");
        assert_eq!(headers["authorization"], "Bearer managed");
        assert!(headers.contains_key("x-ms-date"));
        let headers = signed(&workload).await.expect("a credential");
        assert_eq!(headers["authorization"], "Bearer workload");
        let text = error(&nothing).await;
        for part in ["AZURE_STORAGE_KEY", "client secret", "workload identity", "refused"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        drop(directory);
    });
}

#[test]
fn a_connection_string_names_account_endpoint_and_key() {
    let of = |text: &str| {
        let name = "AZURE_STORAGE_CONNECTION_STRING".to_owned();
        azure::Connection::of(&Environment::of([(name, text.to_owned())]))
    };
    let emulator = of("UseDevelopmentStorage=true").expect("the emulator");
    assert_eq!(emulator.account.as_deref(), Some("devstoreaccount1"));
    assert_eq!(emulator.endpoint.as_deref(), Some("http://127.0.0.1:10000/devstoreaccount1"));
    let cloud = of("DefaultEndpointsProtocol=https;AccountName=a1;AccountKey=a2V5Cg==;\
                    EndpointSuffix=core.chinacloudapi.cn");
    let endpoint = cloud.expect("a string").endpoint;
    assert_eq!(endpoint.as_deref(), Some("https://a1.blob.core.chinacloudapi.cn"));
    for bad in ["AccountKey=x", "nonsense"] {
        assert!(of(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_shared_access_signature_goes_behind_the_query() {
    let kind = SignerKind::Azure { account: "a".to_owned() };
    let signer = signer(kind, &[("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-08-06&sig=x%3D")]);
    run(async move {
        for (url, wanted) in [
            ("https://a.example/c/k", "/c/k?sv=2021-08-06&sig=x%3D"),
            ("https://a.example/c/k?comp=block", "/c/k?comp=block&sv=2021-08-06&sig=x%3D"),
        ] {
            let (mut parts, ()) = Request::get(url).body(()).expect("a request").into_parts();
            signer.sign(&mut parts, &Bytes::new(), 0).await.expect("a credential");
            assert_eq!(parts.uri.path_and_query().map(|p| p.as_str()), Some(wanted));
            assert!(!parts.headers.contains_key("authorization"));
        }
    });
}

mod answers;
