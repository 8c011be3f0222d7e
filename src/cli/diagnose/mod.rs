//! `celld diagnose`: the truth about a machine and a store, before data depends on them.
//!
//! Bounds: three minutes; some sixty requests and one for each lease, and with `--probe` another two
//! thousand and four hundred calls for each of eight peers. Objects are written below `probe/` only,
//! and removed. With `--read-only` nothing is written, neither into the bucket nor into the state
//! directory, here or at a peer.

mod bars;
mod disk;
mod latency;
pub(super) mod leases;
mod peers;
mod render;
mod report;
mod store;
mod system;
#[cfg(test)]
mod tests;
mod twins;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use celld_s3::Bucket;

use self::render::Look;
use self::report::{Finding, Report};
use super::progress::Progress;
use super::settings::{self, Access, DiagnoseSettings};
use super::{CommandError, args};

/// All that waits for the store. Each part has limits of its own, which end earlier.
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// Runs the command.
///
/// # Errors
/// A setting cannot be used. What is wrong with machine or store is not an error but a finding.
pub(crate) fn run(
    typed: args::Diagnose,
    environment: settings::Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let settings = settings::diagnose(typed, environment)?;
    super::notes(&settings.bucket.notes);
    let nonce = getrandom::u64()?;
    let progress = Progress::new();
    let report = diagnose(&settings, nonce, &progress);
    let mut out = std::io::stdout().lock();
    let text = if settings.is_json {
        format!("{:#}\n", report.json())
    } else {
        let look = if out.is_terminal() { Look::Bars } else { Look::Plain };
        render::text(&report, look)
    };
    // Who closes the pipe early has seen enough.
    let _gone = out.write_all(text.as_bytes());
    Ok(if report.is_good() { ExitCode::SUCCESS } else { super::FAILED.into() })
}

fn diagnose(settings: &DiagnoseSettings, nonce: u64, progress: &Progress) -> Report {
    let mut report = Report {
        bucket: settings.bucket.url.clone(),
        directory: settings.state.clone(),
        is_read_only: settings.is_read_only,
        system: Vec::new(),
        state: Vec::new(),
        store: Vec::new(),
        rules: None,
        leases: None,
        peers: None,
        latency: None,
        findings: Vec::new(),
    };
    progress.says("looking at the machine");
    report.system = system::inspect(&mut report.findings);
    report.state = disk::inspect(&settings.state, settings.is_read_only, &mut report.findings);
    // Without what the pre-flight asks for no executor starts, and so no request.
    if report.is_good() {
        look_at_store(settings, nonce, progress, &mut report);
    } else {
        report.findings.push(Finding::note(
            "store.not-reached",
            "the store was not asked, as no node would start here",
            "repair this machine first",
        ));
    }
    report.sort();
    report
}

fn look_at_store(
    settings: &DiagnoseSettings,
    nonce: u64,
    progress: &Progress,
    report: &mut Report,
) {
    let access = if settings.is_read_only { Access::Read } else { Access::Write };
    let bucket = match settings.bucket.open(access) {
        Ok(bucket) => bucket,
        Err(error) => {
            report.findings.push(Finding::fault(
                "bucket.refused",
                error.to_string(),
                "name a bucket that is there with --bucket",
            ));
            return;
        }
    };
    report.bucket = bucket.to_string();
    let looking = async {
        let all = ask_store(settings, &bucket, nonce, progress, report);
        celld_rt::timeout(TIME_LIMIT, all).await
    };
    if celld_rt::block_on(looking).is_err() {
        report.findings.push(Finding::fault(
            "store.too-slow",
            format!("the store did not answer all requests within {TIME_LIMIT:?}"),
            "run this again when the store is less busy, or use one that is nearer",
        ));
    }
    if let Some(latency) = report.latency.as_mut().filter(|_| !settings.is_read_only) {
        let bar = progress.bar(latency::DISK_MAX, "writes to the disk");
        latency.series.push(latency::disk(&settings.state, &bar, &mut report.findings));
    }
}

async fn ask_store(
    settings: &DiagnoseSettings,
    bucket: &Bucket,
    nonce: u64,
    progress: &Progress,
    report: &mut Report,
) {
    let findings = &mut report.findings;
    progress.says("asking the store");
    let Some(reached) = store::reach(bucket, findings).await else { return };
    report.store.push(reached);
    report.store.push(store::clock(bucket.clock_offset_ms(), findings));
    progress.says("trying the rules of the store");
    let (fact, rules) = if settings.is_read_only {
        store::not_probed(findings)
    } else {
        store::probe(bucket, findings).await
    };
    report.store.push(fact);
    report.rules = rules;
    progress.says("reading the leases");
    let leases = match leases::read(bucket, settings.bucket.is_shared()).await {
        Ok(leases) => leases,
        Err(error) => return findings.push(store::unusable(&error)),
    };
    findings.extend(leases::findings(&leases));
    progress.says("asking the nodes");
    let (seen, links) = peers::ask(bucket, &leases, &settings.peers, nonce, findings).await;
    report.peers = Some(seen);
    let leases = report.leases.insert(leases);
    if settings.is_probe {
        let looked_at = settings.is_read_only.then(|| {
            let first = leases.seen.first();
            first.map_or_else(|| "fleet/fleet.json".to_owned(), |seen| seen.key.clone())
        });
        let bar = progress.bar(latency::ROUNDS_MAX, "rounds on the store");
        let measured = latency::store(bucket, nonce, looked_at.as_deref(), &bar, findings);
        let mut measured = measured.await;
        if settings.bucket.is_shared() {
            let bar = progress.bar(twins::ROUNDS_MAX, "pairs on the store");
            let told = twins::measure(bucket, nonce, looked_at.as_deref(), &bar, findings);
            report.store.push(told.await);
        }
        measured.series.extend(peers::measure(links, settings.is_read_only).await);
        report.latency = Some(measured);
    }
}
