//! Notices that a project's files have changed.
//!
//! Invariant: a change after [`Watched::files`] or [`Watched::whole_tree`] looked at a file ends the
//! next wait, also one that came while the project was built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Between two looks at the files: below, a person notices nothing.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// An editor may write several files for one save: the build waits until they rest.
const SETTLE: Duration = Duration::from_millis(100);
/// Files of a tree that are looked at. A project with more has its code in the first ones, or says
/// by its next good build which ones count.
const TREE_FILES_MAX: usize = 10_000;

/// What identifies the content of a file without reading it.
type Marks = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

/// The files that count, and how they looked.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    files: Vec<PathBuf>,
    /// All files below count, also those that come.
    tree: Option<PathBuf>,
    left_out: Option<PathBuf>,
    seen: Marks,
}

impl Watched {
    /// From now on just these count. Those that counted before keep their marks, so that a change
    /// during the build is not lost.
    pub(crate) fn files(&mut self, files: Vec<PathBuf>) {
        self.change(files, None);
    }

    /// From now on these count, and all that is or will be below `tree`, but for hidden files and
    /// installed packages.
    pub(crate) fn whole_tree(&mut self, files: Vec<PathBuf>, tree: PathBuf) {
        self.change(files, Some(tree));
    }

    /// Nothing below `dir` counts as part of a tree: it is written by ourselves.
    pub(crate) fn leave_out(&mut self, dir: PathBuf) {
        self.left_out = Some(dir);
    }

    fn change(&mut self, files: Vec<PathBuf>, tree: Option<PathBuf>) {
        (self.files, self.tree) = (files, tree);
        let mut marks = self.marks();
        for (path, mark) in &mut marks {
            if let Some(seen) = self.seen.get(path) {
                *mark = *seen;
            }
        }
        self.seen = marks;
    }

    /// Waits until a file is another one, is new, or is gone, and all of them rest.
    pub(crate) fn wait_for_change(&mut self) {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let mut now = self.marks();
            if now == self.seen {
                continue;
            }
            loop {
                std::thread::sleep(SETTLE);
                let later = self.marks();
                if later == now {
                    break;
                }
                now = later;
            }
            self.seen = now;
            return;
        }
    }

    fn marks(&self) -> Marks {
        let mark = |path: PathBuf| {
            let seen = std::fs::metadata(&path).ok();
            let mark = seen.and_then(|seen| Some((seen.modified().ok()?, seen.len())));
            (path, mark)
        };
        let tree = self.tree.iter().flat_map(|tree| walk(tree, self.left_out.as_deref()));
        self.files.iter().cloned().chain(tree).map(mark).collect()
    }
}

/// The files below a directory. What cannot be read is not there.
fn walk(tree: &Path, left_out: Option<&Path>) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            if is_hidden || name == "node_modules" || left_out == Some(&entry.path()) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) if found.len() < TREE_FILES_MAX => found.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_a_new_file_and_a_lost_file_are_seen() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = ["a", "b"].map(|name| dir.path().join(name)).to_vec();
        let mut watched = Watched::default();
        watched.files(files.clone());
        let nothing = watched.marks();
        std::fs::write(&files[0], "1").expect("write");
        let one = watched.marks();
        std::fs::write(&files[0], "12").expect("write");
        let longer = watched.marks();
        std::fs::remove_file(&files[0]).expect("remove");
        assert!(nothing != one && one != longer && watched.marks() == nothing);
    }

    #[test]
    fn a_tree_shows_new_files_but_not_what_is_hidden_installed_or_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        for name in [".git", "node_modules/x", "state", "src"] {
            std::fs::create_dir_all(path(name)).expect("make");
        }
        let mut watched = Watched::default();
        watched.leave_out(path("state"));
        watched.whole_tree(Vec::new(), dir.path().to_owned());
        for name in [".git/a", "node_modules/x/a", "state/a"] {
            std::fs::write(path(name), "1").expect("write");
        }
        assert_eq!(watched.marks(), watched.seen);
        std::fs::write(path("src/a"), "1").expect("write");
        assert_ne!(watched.marks(), watched.seen);
    }

    #[test]
    fn what_changes_while_the_project_is_built_ends_the_next_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("a");
        let mut watched = Watched::default();
        watched.files(vec![file.clone()]);
        std::fs::write(&file, "1").expect("write");
        watched.files(vec![file.clone(), dir.path().join("b")]);
        watched.wait_for_change();
        assert_eq!(watched.seen, watched.marks());
    }
}
