//! A disk that lets some renames wait: a library that is loaded into the process before its own.
//!
//! An object of a bucket in a directory appears by a rename. While the file `hold` exists, a
//! rename to a path that contains a given text waits, and the file `held` says that one does.
//! While the file `lose` exists, such a rename says that it is done, and the file is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::node::Plan;
use super::wait_for;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    static int (*next)(const char *, const char *);
    if (!next) next = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    const char *match = getenv("HOLD_MATCH"), *hold = getenv("HOLD_FILE"), *held = getenv("HELD_FILE");
    if (match && hold && held && strstr(to, match)) {
        while (access(hold, F_OK) == 0) {
            int fd = open(held, O_CREAT | O_WRONLY, 0600);
            if (fd >= 0) close(fd);
            usleep(2000);
        }
    }
    const char *lose = getenv("LOSE_FILE");
    if (match && lose && strstr(to, match) && access(lose, F_OK) == 0) return unlink(from);
    return next(from, to);
}
"#;

/// The switch.
pub struct Hold {
    hold: PathBuf,
    held: PathBuf,
    lose: PathBuf,
    library: PathBuf,
}

impl Hold {
    /// Builds the library below `dir`.
    pub fn build(dir: &Path) -> Self {
        let (source, library) = (dir.join("hold.c"), dir.join("hold.so"));
        fs::write(&source, SOURCE).expect("a source file");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .expect("a C compiler is on the path: the build of SQLite needs one too");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { hold: dir.join("hold"), held: dir.join("held"), lose: dir.join("lose"), library }
    }

    /// A node whose renames to paths with `text` can be held.
    pub fn load_into(&self, plan: Plan, text: &str) -> Plan {
        plan.variable("LD_PRELOAD", &self.library)
            .variable("HOLD_FILE", &self.hold)
            .variable("HELD_FILE", &self.held)
            .variable("LOSE_FILE", &self.lose)
            .variable("HOLD_MATCH", text)
    }

    /// From now on they wait.
    pub fn begin(&self) {
        let _none = fs::remove_file(&self.held);
        fs::write(&self.hold, "").expect("a file");
    }

    /// Returns once one waits.
    pub fn wait_until_one_is_held(&self) {
        wait_for("a rename that is held", Duration::from_secs(20), || {
            self.held.exists().then_some(())
        });
    }

    /// From now on they do nothing and say that they have.
    pub fn lose(&self) {
        fs::write(&self.lose, "").expect("a file");
    }

    /// They go on.
    pub fn end(&self) {
        fs::remove_file(&self.hold).expect("it was held");
    }
}
