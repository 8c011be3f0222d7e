//! Handshakes without sockets: who is let in, and who is not.

use celld_core::fleet::FleetSecret;
use rustls::{AlertDescription, ClientConnection, ServerConnection};

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn now() -> Wall {
    Wall::from_millis(celld_rt::wall_ms())
}

/// By so many hours from now.
fn shifted(hours: i64) -> Wall {
    let now = now().as_millis();
    Wall::from_millis(now.saturating_add_signed(hours * HOUR_MS as i64))
}

fn fleet(id: u128, secret: u8) -> FleetRecord {
    FleetRecord { fleet: FleetId::drawn(id), secret: FleetSecret::drawn([secret; 32]) }
}

fn node(name: &str) -> Principal {
    let session = SessionId::parse(&format!("{:032x}", name.len())).expect("32 digits");
    Principal { role: Role::Node, node: NodeId::parse(name).expect("a name"), session }
}

fn identity(fleet: &FleetRecord, name: &str) -> Identity {
    Identity::new(fleet, node(name)).expect("certificates")
}

type Ends = (ClientConnection, ServerConnection);
/// Of the client and of the server.
type Errors = Box<[Option<rustls::Error>; 2]>;

/// Runs a handshake until both sides are done, and returns the two ends.
fn shake(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<Ends, Errors> {
    let name = ServerName::try_from("peer").expect("a name");
    let mut client = ClientConnection::new(client, name).expect("a sound configuration");
    let mut server = ServerConnection::new(server).expect("a sound configuration");
    let mut errors = [None, None];
    for _ in 0..8 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).expect("memory");
        }
        let mut rest = &wire[..];
        while errors[1].is_none() && !rest.is_empty() {
            server.read_tls(&mut rest).expect("memory");
            errors[1] = server.process_new_packets().err();
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("memory");
        }
        let mut rest = &wire[..];
        while errors[0].is_none() && !rest.is_empty() {
            client.read_tls(&mut rest).expect("memory");
            errors[0] = client.process_new_packets().err();
        }
    }
    if errors != [None, None] {
        return Err(errors.into());
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

fn meet(client: &Identity, server: &Identity) -> Result<(Principal, Principal), String> {
    meet_at(client, now(), server, now())
}

/// Who each side says the other one is.
fn meet_at(
    client: &Identity,
    client_clock: Wall,
    server: &Identity,
    server_clock: Wall,
) -> Result<(Principal, Principal), String> {
    let ends = shake(
        client.client(client_clock).expect("certificates"),
        server.server(server_clock).expect("certificates"),
    );
    let (there, here) = ends.map_err(|errors| format!("{errors:?}"))?;
    let of = |identity: &Identity, certificates| {
        identity.peer(certificates).map_err(|error| error.to_string())
    };
    Ok((of(client, there.peer_certificates())?, of(server, here.peer_certificates())?))
}

#[test]
fn nodes_of_one_fleet_know_each_other_by_name_and_session() {
    let fleet = fleet(1, 1);
    let (a, b) = (identity(&fleet, "a"), identity(&fleet, "node-b"));
    assert_eq!(meet(&a, &b), Ok((node("node-b"), node("a"))));
}

#[test]
fn an_operator_is_known_as_one() {
    let fleet = fleet(1, 1);
    let me = Principal { role: Role::Operator, ..node("laptop") };
    let operator = Identity::new(&fleet, me.clone()).expect("certificates");
    assert_eq!(meet(&operator, &identity(&fleet, "a")), Ok((node("a"), me)));
}

#[test]
fn another_fleet_is_refused_by_both_sides() {
    let ours = identity(&fleet(1, 1), "a");
    for theirs in [fleet(1, 2), fleet(2, 2), fleet(2, 1)] {
        let theirs = identity(&theirs, "b");
        let error = meet(&ours, &theirs).expect_err("another fleet");
        assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
        // Who does not check its server is still refused by it.
        let client = careless(Some(&theirs));
        let errors = shake(client, ours.server(now()).expect("certificates")).map(|_| ());
        let [_, refused] = *errors.expect_err("another fleet");
        assert!(refused.as_ref().is_some_and(is_foreign), "{refused:?}");
    }
}

/// A client that trusts every server, with the certificate of `identity` or none.
fn careless(identity: Option<&Identity>) -> Arc<ClientConfig> {
    careless_with(&TLS13, identity.map(|identity| (identity, now())))
}

fn careless_with(
    version: &'static rustls::SupportedProtocolVersion,
    identity: Option<(&Identity, Wall)>,
) -> Arc<ClientConfig> {
    #[derive(Debug)]
    struct Anybody;
    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    Arc::new(match identity {
        None => client.with_no_client_auth(),
        Some((identity, at)) => {
            let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
            let name = identity.me.uri(&identity.fleet);
            let leaf = leaf(&name, at).expect("a name");
            let leaf = leaf.signed_by(&key, &identity.authority).expect("a certificate");
            let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
            client.with_client_auth_cert(vec![leaf.der().clone()], key).expect("a sound pair")
        }
    })
}

#[test]
fn who_shows_no_certificate_is_refused() {
    let server = identity(&fleet(1, 1), "a").server(now()).expect("certificates");
    let errors = shake(careless(None), server).map(|_| ()).expect_err("nobody");
    let none = rustls::Error::NoCertificatesPresented;
    let told = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
    assert_eq!(*errors, [Some(told), Some(none)]);
}

#[test]
fn an_expired_certificate_is_refused_by_both_sides() {
    let fleet = fleet(1, 1);
    let (a, b) = (identity(&fleet, "a"), identity(&fleet, "b"));
    for hours in [-24 * 8, 48] {
        let error = meet_at(&a, now(), &b, shifted(hours)).expect_err("out of its time");
        assert!(error.contains("Expired") || error.contains("NotValidYet"), "{error}");
        let client = careless_with(&TLS13, Some((&b, shifted(hours))));
        let errors = shake(client, a.server(now()).expect("certificates")).map(|_| ());
        let [_, refused] = *errors.expect_err("out of its time");
        let text = format!("{refused:?}");
        assert!(text.contains("Expired") || text.contains("NotValidYet"), "{text}");
    }
}

#[test]
fn clocks_may_differ_by_hours() {
    let fleet = fleet(1, 1);
    for hours in [-2, -1, 1, 2, 20] {
        let (a, b) = (identity(&fleet, "a"), identity(&fleet, "node-b"));
        assert_eq!(meet_at(&a, now(), &b, shifted(hours)), Ok((node("node-b"), node("a"))));
        let (a, b) = (identity(&fleet, "a"), identity(&fleet, "node-b"));
        assert_eq!(meet_at(&a, shifted(hours), &b, now()), Ok((node("node-b"), node("a"))));
    }
}

#[test]
fn tls_before_1_3_is_refused() {
    let a = identity(&fleet(1, 1), "a");
    let old = careless_with(&rustls::version::TLS12, Some((&a, now())));
    let errors = shake(old, a.server(now()).expect("certificates")).map(|_| ());
    let [_, refused] = *errors.expect_err("an old version");
    let text = format!("{refused:?}");
    assert!(text.contains("PeerIncompatible"), "{text}");
}

#[test]
fn a_certificate_of_the_authority_that_names_nobody_here_is_refused() {
    let ours = identity(&fleet(1, 1), "a");
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let named = |names: &[&str]| {
        let mut params = leaf(names.first().unwrap_or(&"x"), now()).expect("a name");
        let uri = |name: &&str| SanType::URI(Ia5String::try_from(*name).expect("ASCII"));
        params.subject_alt_names = names.iter().map(uri).collect();
        let leaf = params.signed_by(&key, &ours.authority).expect("a certificate");
        ours.peer(Some(&[leaf.der().clone()]))
    };
    let (here, there) = (FleetId::drawn(1), FleetId::drawn(2));
    let me = node("a");
    assert_eq!(named(&[&me.uri(&here)]), Ok(me.clone()));
    let nobody = Err(IdentityError::Nameless);
    assert_eq!(named(&[]), nobody);
    assert_eq!(named(&[&me.uri(&there)]), nobody);
    assert_eq!(named(&[&me.uri(&here), &me.uri(&here)]), nobody);
    assert_eq!(named(&[&format!("{}/more", me.uri(&here))]), nobody);
    assert_eq!(named(&[&me.uri(&here).replace("/node/", "/king/")]), nobody);
    assert_eq!(ours.peer(None), nobody);
}

#[test]
fn every_node_derives_the_same_authority_and_each_its_own_key() {
    let fleet = fleet(7, 7);
    let [one, two] = [0, 1].map(|_| authority(&fleet).expect("an authority").certificate);
    assert_eq!(one, two);
    let (a, b) = (identity(&fleet, "a"), identity(&fleet, "a"));
    let shown = |identity: &Identity| {
        let server = identity.server(now()).expect("certificates");
        let (client, _) = shake(careless(Some(identity)), server).expect("the same fleet");
        client.peer_certificates().expect("shown").to_vec()
    };
    assert_eq!(shown(&a), shown(&a), "kept while it is fresh");
    assert_ne!(shown(&a), shown(&b));
}

#[test]
fn a_certificate_is_renewed_each_day_and_after_the_clock_was_set_back() {
    let a = identity(&fleet(1, 1), "a");
    let at = |hours| a.client(shifted(hours)).expect("certificates");
    let first = at(0);
    assert!(Arc::ptr_eq(&first, &at(23)));
    let second = at(25);
    assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &at(26)));
    assert!(!Arc::ptr_eq(&second, &at(-24)));
}
