//! The state directory: what file system it is on, and whether it keeps what it was told to.
//!
//! Bounds: one file of 4 MiB without a name (`Scratch`).

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use celld_shard::scratch::Scratch;
use serde_json::Value;

use super::latency::Series;
use super::report::{Fact, Finding, micros};

/// Less than this, and images of large cells have no room.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// What is on the disk, and where.
pub(super) struct FileSystem {
    kind: Option<&'static str>,
    free_bytes: u64,
}

/// Looks at the directory, and unless `is_read_only` tries it.
pub(super) fn inspect(
    directory: &Path,
    is_read_only: bool,
    findings: &mut Vec<Finding>,
) -> Vec<Fact> {
    let place = existing(directory);
    let mut facts = Vec::new();
    if place != directory {
        let shown = format!("not there yet; {} is", place.display());
        facts.push(Fact::new("exists", "directory", false, shown));
    }
    match file_system(&place) {
        Ok(system) => facts.push(describe(&system, findings)),
        Err(error) => findings.push(unusable(&place, "ask for its file system", &error)),
    }
    if is_read_only {
        facts.push(Fact::new("direct_writes", "writes", Value::Null, "not tried: --read-only"));
        return facts;
    }
    match tried(&place) {
        Ok((is_direct, flush_us)) => {
            let shown = if is_direct { "yes" } else { "no" };
            facts.push(Fact::new("direct_writes", "direct writes", is_direct, shown));
            let shown = celld_core::time::Micros::from_micros(flush_us).to_string();
            facts.push(Fact::new("flush_us", "write + flush", flush_us, shown));
            if !is_direct {
                findings.push(Finding::warning(
                    "state.no-direct",
                    format!("the file system of {} takes no direct writes", place.display()),
                    "put --state on ext4 or XFS: a spool would go through the system's memory",
                ));
            }
        }
        Err(error) => findings.push(unusable(&place, "write, flush and read in it", &error)),
    }
    facts
}

/// Writes and flushes blocks until `is_enough` says so.
///
/// # Errors
/// The disk fails.
pub(super) fn measure(
    directory: &Path,
    series: &mut Series,
    mut is_enough: impl FnMut(&Series) -> bool,
) -> io::Result<()> {
    let mut scratch = Scratch::new(&existing(directory))?;
    while !is_enough(series) {
        let begin = Instant::now();
        scratch.append(7)?;
        series.record(begin.elapsed());
    }
    Ok(())
}

fn unusable(place: &Path, doing: &str, error: &io::Error) -> Finding {
    Finding::fault(
        "state.unusable",
        format!("the state directory {}: cannot {doing}: {error}", place.display()),
        "give this user a directory on a local disk with --state",
    )
}

/// The directory, or the nearest one above it that is there: nothing is made.
fn existing(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let found = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if found == absolute { directory.to_owned() } else { found.to_owned() }
}

fn describe(system: &FileSystem, findings: &mut Vec<Finding>) -> Fact {
    let kind = system.kind.unwrap_or("of a kind that is not known here");
    if system.kind == Some("tmpfs") {
        findings.push(Finding::warning(
            "state.in-memory",
            "the state directory is in memory (tmpfs)",
            "put --state on a disk: its databases would take memory away from cells",
        ));
    }
    if system.kind == Some("nfs") || system.kind == Some("fuse") {
        findings.push(Finding::warning(
            "state.remote",
            format!("the state directory is on a file system of another machine ({kind})"),
            "put --state on a local disk",
        ));
    }
    if system.free_bytes < FREE_BYTES_MIN {
        findings.push(Finding::warning(
            "state.space-low",
            format!("the state directory has {} MiB left", system.free_bytes >> 20),
            "make room: large databases keep an image there while they are in use",
        ));
    }
    let free = system.free_bytes as f64 / f64::from(1 << 30);
    Fact::new(
        "file_system",
        "file system",
        serde_json::json!({ "kind": system.kind, "free_bytes": system.free_bytes }),
        format!("{kind}, {free:.1} GiB free"),
    )
}

fn file_system(path: &Path) -> io::Result<FileSystem> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `statfs` is plain numbers; the call reads the path, which ends in NUL, and writes
    // only the struct that it is given.
    let (answer, stat) = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut stat), stat)
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let kind = match stat.f_type {
        libc::EXT4_SUPER_MAGIC => Some("ext4"),
        libc::XFS_SUPER_MAGIC => Some("xfs"),
        libc::BTRFS_SUPER_MAGIC => Some("btrfs"),
        libc::F2FS_SUPER_MAGIC => Some("f2fs"),
        libc::TMPFS_MAGIC => Some("tmpfs"),
        libc::OVERLAYFS_SUPER_MAGIC => Some("overlay"),
        libc::NFS_SUPER_MAGIC => Some("nfs"),
        libc::FUSE_SUPER_MAGIC => Some("fuse"),
        // ZFS is not in the C library's headers.
        0x2fc1_2fc1 => Some("zfs"),
        _ => None,
    };
    let block = u64::try_from(stat.f_bsize).unwrap_or(0);
    Ok(FileSystem { kind, free_bytes: stat.f_bavail.saturating_mul(block) })
}

/// One block, written, flushed and read back: whether that was direct, and how long it took.
fn tried(place: &Path) -> io::Result<(bool, u64)> {
    let mut scratch = Scratch::new(place)?;
    let begin = Instant::now();
    scratch.append(9)?;
    let took = micros(begin.elapsed());
    if !scratch.begins_with(9)? {
        return Err(io::Error::other("it reads other bytes than were written"));
    }
    Ok((scratch.is_direct(), took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_tried_where_it_would_be_and_not_made() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("a/b");
        let mut findings = Vec::new();
        let facts = inspect(&directory, false, &mut findings);
        let keys: Vec<_> = facts.iter().map(|fact| fact.key).collect();
        assert_eq!(keys, ["exists", "file_system", "direct_writes", "flush_us"]);
        let faults = findings.iter().filter(|f| f.code == "state.unusable").count();
        assert_eq!(faults, 0, "{findings:?}");
        assert!(std::fs::read_dir(parent.path()).expect("a listing").next().is_none());
    }

    #[test]
    fn a_place_that_takes_no_files_is_a_fault() {
        let mut findings = Vec::new();
        inspect(Path::new("/proc/self"), false, &mut findings);
        assert!(findings.iter().any(|finding| finding.code == "state.unusable"), "{findings:?}");
    }

    #[test]
    fn a_disk_is_measured_until_it_is_enough() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut series = Series::new("disk.write", "disk write + flush");
        measure(directory.path(), &mut series, |series| series.count() == 5).expect("a disk");
        assert_eq!(series.count(), 5);
        assert!(std::fs::read_dir(directory.path()).expect("a listing").next().is_none());
    }

    #[test]
    fn little_room_and_memory_are_warned_of() {
        let mut findings = Vec::new();
        let fact =
            describe(&FileSystem { kind: Some("tmpfs"), free_bytes: 5 << 20 }, &mut findings);
        assert_eq!(fact.shown, "tmpfs, 0.0 GiB free");
        let codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["state.in-memory", "state.space-low"]);
    }
}
