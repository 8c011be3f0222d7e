//! What our TLS connections trust.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Trust, versions and resumable sessions of TLS connections; threads share it.
pub type TlsConfig = Arc<ClientConfig>;

/// The system's roots, and Mozilla's where the system has none.
pub fn tls_config() -> TlsConfig {
    config(system_roots())
}

/// As [`tls_config`], and the authorities in the PEM file `extra`, too.
///
/// # Errors
/// The file cannot be read or has no certificate that can be used.
pub fn tls_config_with(extra: &Path) -> io::Result<TlsConfig> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut roots = system_roots();
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(&std::fs::read(extra)?) {
        let certificate = certificate.map_err(|error| bad(format!("is no PEM file: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| bad(format!("has a certificate that cannot be used: {error}")))?;
    }
    if roots.len() == before {
        return Err(bad("has no certificate".to_owned()));
    }
    Ok(config(roots))
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn config(roots: RootCertStore) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}
