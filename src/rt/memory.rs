//! How much memory this process may use.
//!
//! Units: bytes.
//! Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.

use std::fs;
use std::path::Path;

/// The smallest of what the machine has and what the control groups of this process allow. `None`:
/// the system does not say.
pub fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let allowed = group_limit(&groups, Path::new("/sys/fs/cgroup"));
    machine.into_iter().chain(allowed).min()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The smallest limit of a group of this process and those above it. In a container the path of the
/// group may be that outside, and the mount shows the group itself.
fn group_limit(groups: &str, mount: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            (mount.to_owned(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = root.join(path.trim_start_matches('/'));
        let above = group.ancestors().take_while(|dir| dir.starts_with(&root));
        limits.extend(above.filter_map(|dir| limit_in(&dir.join(file))));
    }
    limits.into_iter().min()
}

/// `max`, and what version 1 says instead: no number of bytes that any machine has.
fn limit_in(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 60).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_smallest_of_the_group_and_those_above() {
        let name = format!("celld-memory-{}", std::process::id());
        let mount = std::env::temp_dir().join(name);
        let write = |path: &str, text: &str| {
            let path = mount.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "7000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        for (groups, expected) in [
            ("0::/a/b\n", Some(5_000)),
            ("0::/\n", None),
            // Seen from a container: the path leads nowhere, the groups above do.
            ("0::/a/elsewhere\n", Some(5_000)),
            ("4:cpu:/x\n3:memory:/c\n0::/\n", Some(7_000)),
            ("3:cpu,memory:/d\n", None),
            ("", None),
        ] {
            assert_eq!(group_limit(groups, &mount), expected, "{groups:?}");
        }
        fs::remove_dir_all(&mount).expect("it was made");
    }

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:   16384 kB\n"), Some(16 << 20));
        assert_eq!(total("MemTotal: many\n"), None);
        assert!(memory_limit().is_some_and(|bytes| bytes > 64 << 20));
    }
}
