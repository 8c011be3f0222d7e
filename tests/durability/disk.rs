//! A disk without space: nothing that was acknowledged is lost, and all is well when there is space
//! again: by itself if the lease outlives the time without, after a restart if it does not.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ledger::append;
use super::load::{Cell, Load};
use super::nodes::assert_fenced;
use super::support::node::Site;
use super::support::rng::Rng;
use super::support::wait_for;

/// A file system of its own in memory, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`: this process may not mount.
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).expect("a directory");
        let path = CString::new(at.as_os_str().as_bytes()).expect("a path");
        // SAFETY: all strings end in zero and live through the call.
        let done = unsafe {
            libc::mount(
                c"tmpfs".as_ptr(),
                path.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                c"size=6m".as_ptr().cast(),
            )
        };
        (done == 0).then(|| Self(at.to_owned()))
    }

    /// Takes all space that is left.
    fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).expect("a file");
        let full = loop {
            if let Err(error) = ballast.write_all(&[1; 512]) {
                break error;
            }
        };
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let Ok(path) = CString::new(self.0.as_os_str().as_bytes()) else { return };
        // SAFETY: the path ends in zero and lives through the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// A bucket on a small disk. `None`: this process may not mount one.
fn small_site() -> Option<(SmallDisk, Site)> {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk")) else {
        println!("not run: this process may not mount a small file system");
        return None;
    };
    let bucket = disk.0.join("bucket");
    Some((disk, Site::on(dir, bucket)))
}

#[test]
fn a_full_disk_fails_writes_loses_nothing_and_heals_without_a_restart() {
    let _machine = super::shared();
    let Some((disk, site)) = small_site() else { return };
    // The lease is not what is tested: it outlives the time without space.
    let mut plan = site.node("n").variable("CELLD_TTL_MS", "300000");
    let node = plan.start();
    let (cell, other) = (Cell::new("c".into()), Cell::new("other".into()));
    let mut client = node.client();
    for seq in 0..20 {
        for cell in [&cell, &other] {
            cell.ledger().sends((0, seq));
            let number = append(&mut client, &cell.name, (0, seq)).expect("an acknowledgement");
            cell.ledger().acknowledges(number, (0, seq));
        }
    }
    disk.fill();
    let started = Instant::now();
    cell.ledger().sends((1, 0));
    let (status, text) = append(&mut client, "c", (1, 0)).expect_err("there is no space");
    println!("refused after {:?}: {status:?} {text}", started.elapsed());
    assert_eq!(status, Some(503), "{text}");
    assert!(text.contains("could not be proven durable"), "{text}");
    assert!(node.log().contains("No space left on device"), "{}", node.log());
    // A cell that is in memory and has nothing to prove goes on.
    other.verify(&mut node.client());
    disk.free();
    wait_for("an acknowledged write", Duration::from_secs(20), || {
        cell.ledger().sends((2, 0));
        match append(&mut client, "c", (2, 0)) {
            Ok(number) => {
                cell.ledger().acknowledges(number, (2, 0));
                Some(())
            }
            Err((Some(503), _)) => None,
            Err(other) => panic!("neither acknowledged nor retryable: {other:?}"),
        }
    });
    cell.verify(&mut client);
    node.kill();
    let node = plan.start();
    cell.verify(&mut node.client());
    other.verify(&mut node.client());
    drop(node);
    drop(disk);
}

#[test]
fn a_disk_that_stays_full_past_the_lease_ends_the_node_and_loses_nothing() {
    const TTL: Duration = Duration::from_secs(6);
    let _machine = super::shared();
    let Some((disk, site)) = small_site() else { return };
    let rng = Rng::from_environment("the full disk");
    let mut plan = site.node("n").variable("CELLD_TTL_MS", TTL.as_millis().to_string());
    let mut node = plan.start();
    let cells: Vec<_> = (0..3).map(|n| Cell::new(format!("c{n}"))).collect();
    let load = Load::start(node.door(), &cells, 6, 2, &rng);
    wait_for("acknowledged writes", Duration::from_secs(20), || {
        cells.iter().all(|cell| cell.ledger().acknowledged >= 10).then_some(())
    });
    // In the middle of writes. What is acknowledged from here on has to be there as well.
    disk.fill();
    let status = node.wait_for_end(TTL + Duration::from_secs(20));
    assert_fenced(status, &node.log(), "expired");
    let refusals = load.end();
    assert!(refusals.iter().all(|text| text.starts_with("503")), "{refusals:#?}");
    assert!(node.log().contains("No space left on device"), "{}", node.log());

    // As long as there is no space a start says so, and a supervisor tries again.
    let mut early = plan.spawn();
    let status = early.wait_for_end(Duration::from_secs(20));
    let log = early.log();
    assert!(status.code() == Some(1) && log.contains("No space left on device"), "{status} {log}");

    disk.free();
    let node = plan.start();
    let mut client = node.client();
    for cell in &cells {
        assert!(cell.verify(&mut client) >= 10);
        cell.ledger().sends((99, 0));
        let number = append(&mut client, &cell.name, (99, 0)).expect("an acknowledgement");
        cell.ledger().acknowledges(number, (99, 0));
        cell.verify(&mut client);
    }
    drop(node);
    drop(disk);
}
