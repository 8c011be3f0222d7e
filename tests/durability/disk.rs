//! A disk without space: nothing that was acknowledged is lost, and it ends when there is space.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ledger::append;
use super::load::Cell;
use super::support::node::Site;
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

#[test]
fn a_full_disk_fails_writes_loses_nothing_and_heals_without_a_restart() {
    let _machine = super::shared();
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk")) else {
        println!("not run: this process may not mount a small file system");
        return;
    };
    let bucket = disk.0.join("bucket");
    let site = Site::on(dir, bucket);
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
