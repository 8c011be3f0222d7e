//! Who belongs to the fleet: certificates made from the fleet's secret, and mutual TLS 1.3.
//!
//! The secret gives the key of the fleet's authority, by HKDF, so that every node has the same one
//! and nobody else has it. With it a node signs a certificate for itself: a key that never leaves
//! its memory, and a name with its node and its session. Both sides of a connection show one, and
//! each checks that the other's is of this authority and names this fleet.
//!
//! Invariant: who reads the fleet record is trusted, nobody else. Times in certificates only end
//! the use of one that was copied from a process; clocks may differ by hours.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use celld_core::fleet::{FleetId, FleetRecord};
use celld_core::node::{NodeId, SessionId};
use celld_core::time::{Micros, Wall};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber,
};
use ring::hkdf;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme,
};
use webpki::EndEntityCert;

/// How long before its making a certificate counts: the clock of the other side may be behind.
const EARLY: Micros = Micros::from_secs(24 * 3_600);
/// How long after it: a session that runs for longer gets another one.
const LATE: Micros = Micros::from_secs(7 * 24 * 3_600);
/// A certificate older than this is replaced for the next connection.
const RENEWED_AFTER: Micros = Micros::from_secs(24 * 3_600);

/// Before the seed of an Ed25519 key: RFC 8410, section 7.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Certificates cannot be made, or the other side's names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A fault of ours.
    #[error("certificates of the fleet cannot be made: {0}")]
    Making(String),
    /// It is of the fleet's authority, but not one that a node makes.
    #[error("the peer's certificate does not name a node or operator of this fleet")]
    Nameless,
}

/// What the holder of a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A node that serves.
    Node,
    /// A command that an operator runs.
    Operator,
}

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// What it is.
    pub role: Role,
    /// Its name; of an operator: any.
    pub node: NodeId,
    /// This life of it.
    pub session: SessionId,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (session {})", self.role.word(), self.node, self.session)
    }
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Operator => "operator",
        }
    }
}

impl Principal {
    /// The name in the certificate.
    fn uri(&self, fleet: &FleetId) -> String {
        format!("celld://{fleet}/{}/{}/{}", self.role.word(), self.node, self.session)
    }

    fn parse(fleet: &FleetId, uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix("celld://")?.split('/');
        let mut next = || parts.next();
        if next()? != fleet.as_str() {
            return None;
        }
        let word = next()?;
        let role = [Role::Node, Role::Operator].into_iter().find(|role| role.word() == word)?;
        let (node, session) = (NodeId::parse(next()?)?, SessionId::parse(next()?)?);
        next().is_none().then_some(Self { role, node, session })
    }
}

/// What one process is to its fleet. One for each shard: it is not shared.
pub struct Identity {
    fleet: FleetId,
    me: Principal,
    authority: Issuer<'static, KeyPair>,
    trusted: Trusted,
    credentials: RefCell<Option<Credentials>>,
}

/// Configurations with one certificate.
#[derive(Clone)]
struct Credentials {
    made: Wall,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The fleet's authority, as certificates are checked against it.
#[derive(Clone, Debug)]
struct Trusted {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Identity {
    /// `me` in the fleet of this record.
    ///
    /// # Errors
    /// The authority's certificate cannot be made.
    pub fn new(fleet: &FleetRecord, me: Principal) -> Result<Self, IdentityError> {
        let authority = authority(fleet).map_err(making)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate).map_err(making)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Self {
            fleet: fleet.fleet.clone(),
            me,
            authority: authority.issuer,
            trusted: Trusted { roots: Arc::new(roots), provider },
            credentials: RefCell::new(None),
        })
    }

    /// Who this is.
    pub fn me(&self) -> &Principal {
        &self.me
    }

    /// For accepting a connection at `now`.
    ///
    /// # Errors
    /// A certificate cannot be made.
    pub fn server(&self, now: Wall) -> Result<Arc<ServerConfig>, IdentityError> {
        Ok(self.credentials(now)?.server)
    }

    /// For opening a connection at `now`.
    ///
    /// # Errors
    /// A certificate cannot be made.
    pub fn client(&self, now: Wall) -> Result<Arc<ClientConfig>, IdentityError> {
        Ok(self.credentials(now)?.client)
    }

    /// Who is at the other end of a connection whose handshake is done.
    ///
    /// # Errors
    /// Its certificate names nobody of this fleet.
    pub fn peer(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
    ) -> Result<Principal, IdentityError> {
        let leaf = certificates.and_then(<[_]>::first).ok_or(IdentityError::Nameless)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(|_| IdentityError::Nameless)?;
        let mut names = leaf.valid_uri_names();
        let name = names.next().and_then(|uri| Principal::parse(&self.fleet, uri));
        name.filter(|_| names.next().is_none()).ok_or(IdentityError::Nameless)
    }

    /// The present ones, or fresh ones: too old, or made by a clock that has been set back since.
    fn credentials(&self, now: Wall) -> Result<Credentials, IdentityError> {
        let present = self.credentials.borrow().clone();
        let is_fresh = |made: Wall| now < made + RENEWED_AFTER && made < now + EARLY;
        if let Some(present) = present.filter(|present| is_fresh(present.made)) {
            return Ok(present);
        }
        let made = self.make_credentials(now)?;
        *self.credentials.borrow_mut() = Some(made.clone());
        Ok(made)
    }

    fn make_credentials(&self, now: Wall) -> Result<Credentials, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(making)?;
        let leaf = leaf(&self.me.uri(&self.fleet), now).map_err(making)?;
        let leaf = leaf.signed_by(&key, &self.authority).map_err(making)?;
        let chain = vec![leaf.der().clone()];
        let key: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let Trusted { roots, provider } = &self.trusted;

        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .clear_root_hint_subjects() // strangers need not know whose port this is
            .build()
            .map_err(making)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(making)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(making)?;
        // Connections live long, and each is to see a certificate.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(making)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.trusted.clone()))
            .with_client_auth_cert(chain, key)
            .map_err(making)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Credentials { made: now, server: Arc::new(server), client: Arc::new(client) })
    }
}

/// The chain is checked as always; the name is no host's, and [`Identity::peer`] reads it.
impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &leaf,
            &self.roots,
            others,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// The same on every node: nothing in it is drawn or read from a clock.
fn authority(fleet: &FleetRecord) -> Result<Authority, rcgen::Error> {
    let key = PrivatePkcs8KeyDer::from(authority_key(fleet));
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?;
    let mut params = CertificateParams::new([])?;
    params.serial_number = Some(SerialNumber::from(1));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, format!("celld fleet {}", fleet.fleet));
    let certificate = params.self_signed(&key)?.der().clone();
    Ok(Authority { certificate, issuer: Issuer::new(params, key) })
}

fn authority_key(fleet: &FleetRecord) -> Vec<u8> {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"celld fleet authority");
    let mut seed = [0; 32];
    let info = [b"ed25519 ", fleet.fleet.as_str().as_bytes()];
    salt.extract(fleet.secret.expose())
        .expand(&info, hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut seed))
        .expect("32 bytes are no more than HKDF gives");
    [&PKCS8_ED25519[..], &seed].concat()
}

fn leaf(name: &str, now: Wall) -> Result<CertificateParams, rcgen::Error> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |wall: Wall| epoch + Duration::from_millis(wall.as_millis());
    let mut params = CertificateParams::new([])?;
    params.not_before = at(Wall::from_millis(now.as_millis().saturating_sub(EARLY.as_millis())));
    params.not_after = at(now + LATE);
    params.distinguished_name.remove(DnType::CommonName);
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(name)?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

fn making(error: impl fmt::Display) -> IdentityError {
    IdentityError::Making(error.to_string())
}

/// Whether a handshake failed because the other side is none of this fleet.
pub(crate) fn is_foreign(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        )
    )
}

#[cfg(test)]
mod tests;
