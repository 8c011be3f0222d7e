//! `celld dev`: a project on an embedded bucket, built again after each change.
//!
//! Invariant: the bucket gets only builds that succeeded, so a slip of the keyboard leaves the old
//! code serving. Before there is old code nothing is served, and that is said.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use celld_core::node::NodeId;
use celld_s3::Bucket;
use celld_shard::node::Capacity;

use super::bundle::BundleError;
use super::config::{self, Project, Purpose};
use super::publish::{self, Published};
use super::serve::{self, Serving};
use super::watch::Watched;
use super::{CommandError, args, bundle, settings};

/// A name of variable is shown with this much of its value.
const SHOWN_CHARS: usize = 40;

/// Runs the command.
///
/// # Errors
/// The project is none, its code cannot be built and nobody waits for a change, or the node cannot
/// start.
pub(crate) fn run(
    typed: args::Dev,
    environment: settings::Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let settings = settings::dev(&typed, environment)?;
    let dir = typed.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let source = Source { dir, environment: typed.env.clone() };
    let mut watched = Watched::default();
    let built = match source.build(&mut watched) {
        Err(CommandError::Bundle(error)) if !typed.no_watch && is_of_the_code(&error) => {
            celld_rt::log!(
                "celld: nothing is served yet, as the project cannot be built:\n{error}"
            );
            first_that_builds(&source, &mut watched)
        }
        built => built?,
    };
    let base = typed.state.clone().unwrap_or_else(|| built.project.dir.join(".celld"));
    let base = std::path::absolute(&base).map_err(|error| CommandError::File(base, error))?;
    if typed.clean {
        clean(&base)?;
    }
    celld_rt::preflight()?;
    let bucket = Bucket::open_dir(&base.join("bucket"))?;
    watched.leave_out(base.clone());
    let bindings = Arc::new(Mutex::new(describe(&built.project)));
    celld_rt::block_on(built.publish(&bucket))?;
    if !typed.no_watch {
        let (bucket, bindings) = (bucket.clone(), bindings.clone());
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || rebuild(&source, &bucket, watched, &bindings))
            .map_err(|error| CommandError::File(PathBuf::from("the watching thread"), error))?;
    }
    serve::run(Serving {
        bucket,
        listen: settings.listen,
        fleet: None,
        node: NodeId::parse("dev").expect("`dev` is a good name"),
        state: base.join("state"),
        shards: settings.shards,
        lease_ttl: settings.lease_ttl,
        idle_evict: settings.idle_evict,
        drain_timeout: None,
        capacity: Capacity::default(),
        is_dev: true,
        must_serve: typed.no_watch,
        ready: Box::new(move |address, serves| match serves {
            Ok(_) => announce(address, &bindings.lock().unwrap_or_else(PoisonError::into_inner)),
            // Why stands in the line before.
            Err(_) => celld_rt::log!("celld: nothing is served yet; waiting for a change"),
        }),
    })
}

/// Whether a change of the project's files can mend it.
fn is_of_the_code(error: &BundleError) -> bool {
    !matches!(error, BundleError::NoBundler { .. } | BundleError::Run { .. })
}

/// Where the project is.
struct Source {
    dir: PathBuf,
    environment: Option<String>,
}

/// A build that succeeded.
struct Built {
    project: Project,
    bundle: bundle::Bundle,
}

impl Source {
    /// Builds the project as it is now. `watched` learns what a better build depends on.
    fn build(&self, watched: &mut Watched) -> Result<Built, CommandError> {
        let project = config::load(&self.dir, self.environment.as_deref(), Purpose::Dev)?;
        super::notes(&project.notes);
        let mut files = project.files.clone();
        // Secrets that do not exist yet count as well: creating them is a change.
        files.extend([".dev.vars", ".env"].map(|name| project.dir.join(name)));
        match bundle::build(&project, Purpose::Dev) {
            Ok(bundle) => {
                super::notes(&bundle.notes);
                files.extend(bundle.inputs.iter().cloned());
                watched.files(files);
                Ok(Built { project, bundle })
            }
            Err(error) => {
                // What is missing may be in any file, and in one that is not there yet.
                watched.whole_tree(files, project.dir);
                Err(error.into())
            }
        }
    }
}

impl Built {
    async fn publish(self, bucket: &Bucket) -> Result<Published, CommandError> {
        let manifest = publish::manifest(&self.project, &self.bundle)?;
        Ok(publish::publish(bucket, &manifest, self.bundle, Purpose::Dev, |_, _, _| {}).await?)
    }
}

/// Waits for a change that makes the project build.
fn first_that_builds(source: &Source, watched: &mut Watched) -> Built {
    loop {
        watched.wait_for_change();
        match source.build(watched) {
            Ok(built) => return built,
            Err(error) => celld_rt::log!("celld: nothing is served yet:\n{error}"),
        }
    }
}

/// Builds again after each change, for as long as the process lives.
fn rebuild(source: &Source, bucket: &Bucket, mut watched: Watched, bindings: &Mutex<Vec<String>>) {
    loop {
        watched.wait_for_change();
        let result = source.build(&mut watched).and_then(|built| {
            *bindings.lock().unwrap_or_else(PoisonError::into_inner) = describe(&built.project);
            celld_rt::block_on(built.publish(bucket))
        });
        match result {
            Ok(published) if published.is_unchanged => {
                celld_rt::log!("celld: built again: nothing changed");
            }
            Ok(published) => celld_rt::log!("celld: built again: version {}", published.version),
            Err(error) => celld_rt::log!(
                "celld: what was served is served on, as the new code cannot be built:\n{error}"
            ),
        }
    }
}

/// Removes what earlier runs left, and nothing else that may lie in the directory.
fn clean(base: &Path) -> Result<(), CommandError> {
    for dir in [base.join("bucket"), base.join("state")] {
        match std::fs::remove_dir_all(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(CommandError::File(dir, error)),
        }
    }
    Ok(())
}

/// What `env` holds, one line each. Secrets are named, not shown.
fn describe(project: &Project) -> Vec<String> {
    let mut lines = Vec::new();
    for object in &project.durable_objects {
        lines.push(format!("env.{}: Durable Object {}", object.binding, object.class_name));
    }
    for (name, value) in &project.vars {
        let shown = if project.secrets.contains(name) {
            "(hidden)".to_owned()
        } else {
            let text = value.to_string();
            let short: String = text.chars().take(SHOWN_CHARS).collect();
            if short.len() < text.len() { format!("{short}…") } else { text }
        };
        lines.push(format!("env.{name}: {shown}"));
    }
    lines.extend(project.crons.iter().map(|cron| {
        format!(
            "cron {cron}: GET /cdn-cgi/handler/scheduled?cron={} runs it",
            cron.replace(' ', "+")
        )
    }));
    lines
}

fn announce(address: SocketAddr, lines: &[String]) {
    let host = if address.ip().is_unspecified() {
        SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), address.port())
    } else {
        address
    };
    let text: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    // Who closes the pipe early has seen enough.
    let _gone = std::io::stdout().write_all(format!("http://{host}\n{text}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaning_leaves_what_is_not_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["bucket/x", "state/y", "mine/z"] {
            std::fs::create_dir_all(dir.path().join(name)).expect("make");
        }
        clean(dir.path()).expect("clean");
        clean(dir.path()).expect("clean what is clean");
        let left: Vec<_> = std::fs::read_dir(dir.path())
            .expect("read")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(left, ["mine"]);
    }
}
