//! `celld dev`: a project on an embedded bucket, built again after each change.
//!
//! Invariant: the bucket gets only builds that succeeded, so a slip of the keyboard leaves the old
//! code serving.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use celld_core::node::NodeId;
use celld_s3::Bucket;

use super::config::{self, Project, Purpose};
use super::publish::{self, Published};
use super::serve::{self, Serving};
use super::{CommandError, args, bundle, settings};

/// Between two looks at the files: below, a person notices nothing.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// An editor may write several files for one save: the build waits until they rest.
const SETTLE: Duration = Duration::from_millis(100);
/// A name of variable is shown with this much of its value.
const SHOWN_CHARS: usize = 40;

/// Runs the command.
///
/// # Errors
/// The project cannot be built at all, or the node cannot start.
pub(crate) fn run(
    typed: args::Dev,
    environment: settings::Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let settings = settings::dev(&typed, environment)?;
    let dir = typed.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let source = Source { dir, environment: typed.env.clone() };
    let built = source.build()?;
    let base = typed.state.clone().unwrap_or_else(|| built.project.dir.join(".celld"));
    let base = std::path::absolute(&base).map_err(|error| CommandError::File(base, error))?;
    if typed.clean {
        clean(&base)?;
    }
    celld_rt::preflight()?;
    let bucket = Bucket::open_dir(&base.join("bucket"))?;
    let lines = describe(&built.project);
    let files = built.files.clone();
    celld_rt::block_on(built.publish(&bucket))?;
    if !typed.no_watch {
        let (bucket, source) = (bucket.clone(), source);
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watch(&source, &bucket, files))
            .map_err(|error| CommandError::File(PathBuf::from("the watching thread"), error))?;
    }
    serve::run(Serving {
        bucket,
        listen: settings.listen,
        node: NodeId::parse("dev").expect("`dev` is a good name"),
        state: base.join("state"),
        shards: settings.shards,
        lease_ttl: settings.lease_ttl,
        idle_evict: settings.idle_evict,
        is_dev: true,
        ready: Box::new(move |address, _| announce(address, &lines)),
    })
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
    /// All files that it depends on.
    files: Vec<PathBuf>,
}

impl Source {
    fn build(&self) -> Result<Built, CommandError> {
        let project = config::load(&self.dir, self.environment.as_deref(), Purpose::Dev)?;
        let bundle = bundle::build(&project, Purpose::Dev)?;
        super::notes(&project.notes);
        super::notes(&bundle.notes);
        let mut files = project.files.clone();
        files.extend(bundle.inputs.iter().cloned());
        // Secrets that do not exist yet count as well: creating them is a change.
        files.extend([".dev.vars", ".env"].map(|name| project.dir.join(name)));
        Ok(Built { project, bundle, files })
    }
}

impl Built {
    async fn publish(self, bucket: &Bucket) -> Result<Published, CommandError> {
        let manifest = publish::manifest(&self.project, &self.bundle)?;
        Ok(publish::publish(bucket, &manifest, self.bundle, Purpose::Dev, |_, _, _| {}).await?)
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

/// What identifies the content of a file without reading it.
type Marks = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

fn marks(files: &[PathBuf]) -> Marks {
    let mark = |path: &PathBuf| {
        let seen = std::fs::metadata(path).ok();
        seen.and_then(|seen| Some((seen.modified().ok()?, seen.len())))
    };
    files.iter().map(|path| (path.clone(), mark(path))).collect()
}

/// Builds again after each change, for as long as the process lives.
fn watch(source: &Source, bucket: &Bucket, files: Vec<PathBuf>) {
    let mut seen = marks(&files);
    let mut files = files;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let mut now = marks(&files);
        if now == seen {
            continue;
        }
        loop {
            std::thread::sleep(SETTLE);
            let later = marks(&files);
            if later == now {
                break;
            }
            now = later;
        }
        seen = now;
        let result = source.build().and_then(|built| {
            files.clone_from(&built.files);
            celld_rt::block_on(built.publish(bucket))
        });
        match result {
            Ok(published) if published.is_unchanged => {
                eprintln!("celld: built again: nothing changed")
            }
            Ok(published) => eprintln!("celld: built again: version {}", published.version),
            Err(error) => eprintln!(
                "celld: the old code keeps serving, as the new one cannot be built:\n{error}"
            ),
        }
        // New files count from now on; those that were there keep their marks, so that a change
        // during the build is not lost.
        for (path, mark) in marks(&files) {
            seen.entry(path).or_insert(mark);
        }
        seen.retain(|path, _| files.contains(path));
    }
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
    println!("http://{host}");
    for line in lines {
        println!("  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_a_new_file_and_a_lost_file_are_seen() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = ["a", "b"].map(|name| dir.path().join(name)).to_vec();
        let nothing = marks(&files);
        std::fs::write(&files[0], "1").expect("write");
        let one = marks(&files);
        std::fs::write(&files[0], "12").expect("write");
        let longer = marks(&files);
        std::fs::remove_file(&files[0]).expect("remove");
        assert!(nothing != one && one != longer && marks(&files) == nothing);
    }

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
