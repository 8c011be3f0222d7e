//! Three kinds of time that must not be mixed.
//!
//! Units: [`Mono`] and [`Micros`] are microseconds of this process, [`Wall`] is milliseconds since
//! 1970 and stands only in records that other nodes read.

use core::fmt;
use core::ops::{Add, Sub};

/// An instant of this process's monotonic clock, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(u64);

/// A span of time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(u64);

/// An instant of the wall clock, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Wall(u64);

impl Mono {
    /// From microseconds since any fixed start of this process.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }
    /// Microseconds since that start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    /// The time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Mono) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Micros {
    /// No time at all.
    pub const ZERO: Micros = Micros(0);
    /// From microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }
    /// From milliseconds; saturates.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }
    /// From seconds; saturates.
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000))
    }
    /// In microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    /// In whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }
}

impl Wall {
    /// From milliseconds since 1970.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }
    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

impl Add<Micros> for Mono {
    type Output = Mono;
    fn add(self, span: Micros) -> Mono {
        Mono(self.0.saturating_add(span.0))
    }
}

impl Add<Micros> for Wall {
    type Output = Wall;
    fn add(self, span: Micros) -> Wall {
        Wall(self.0.saturating_add(span.as_millis()))
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl Sub for Micros {
    type Output = Micros;
    fn sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1_000 => write!(f, "{us} µs"),
            us if us < 1_000_000 => write!(f, "{}.{:02} ms", us / 1_000, us % 1_000 / 10),
            us => write!(f, "{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000),
        }
    }
}
