//! What the system must offer, checked before the first executor starts.
//!
//! Glommio ends the process with a panic where io_uring is forbidden, and refuses a *soft* memlock
//! limit below 512 KiB even for root. Both deserve a sentence that tells what to do.

use std::io;

/// What glommio checks for.
const MEMLOCK_MIN: u64 = 512 << 10;

/// The system lacks something that celld cannot do without.
#[derive(Debug)]
pub struct PreflightError(String);

impl std::fmt::Display for PreflightError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PreflightError {}

/// Checks io_uring and the limits, raises soft limits (memlock, open files) to the hard ones, and
/// keeps the process off huge pages.
///
/// # Errors
/// Says what is missing and how to get it.
pub fn preflight() -> Result<(), PreflightError> {
    refuse_huge_pages();
    raise_limit(libc::RLIMIT_NOFILE, "open files")?;
    let memlock = raise_limit(libc::RLIMIT_MEMLOCK, "locked memory")?;
    if memlock < MEMLOCK_MIN {
        return Err(PreflightError(format!(
            "the limit for locked memory is {} KiB, and io_uring needs 512 KiB: raise it with \
             `ulimit -l 8192`, LimitMEMLOCK=8M in a systemd unit, or --ulimit memlock=8388608 in a \
             container",
            memlock >> 10
        )));
    }
    match io_uring::IoUring::new(8) {
        Ok(_) => Ok(()),
        Err(error) => Err(PreflightError(ring_advice(&error))),
    }
}

/// The allocator asks for huge pages, and each then counts whole although a cell more or less fills
/// only some kilobytes of it.
fn refuse_huge_pages() {
    // SAFETY: takes numbers only and touches no memory of ours. A kernel without it has no huge
    // pages, or keeps them: that costs memory and is not wrong.
    let _kept = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

pub(crate) fn ring_advice(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "io_uring is forbidden here (EPERM): set the sysctl \
             kernel.io_uring_disabled=0, or run the container with a seccomp profile that allows \
             io_uring_setup, io_uring_enter and io_uring_register"
            .to_owned(),
        Some(libc::ENOSYS) => "this kernel has no io_uring: Linux 5.8 or later is needed, with \
             CONFIG_IO_URING, and a container runtime that does not hide it"
            .to_owned(),
        Some(libc::ENOMEM) => {
            "no more memory may be locked for io_uring (ENOMEM), which takes 0.4 MiB for each \
             shard, counted together with this user's other processes: raise the limit with \
             `ulimit -l`, LimitMEMLOCK= in a systemd unit, or --ulimit memlock= in a container, or \
             run fewer --shards"
                .to_owned()
        }
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

/// Returns the limit that is in force afterwards.
fn raise_limit(which: libc::__rlimit_resource_t, name: &str) -> Result<u64, PreflightError> {
    let limit = limit_of(which)
        .map_err(|error| PreflightError(format!("the limit for {name} cannot be read: {error}")))?;
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: the call reads only the struct that it is given.
        if unsafe { libc::setrlimit(which, &raw const raised) } == 0 {
            return Ok(raised.rlim_cur);
        }
    }
    Ok(limit.rlim_cur)
}

pub(crate) fn limit_of(which: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes only the struct that it is given.
    match unsafe { libc::getrlimit(which, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}
