//! Where a client's connection should be served: on the shard whose cells it asks for. A call to a
//! cell of another shard costs two wake-ups of a core.
//!
//! Invariants: a connection moves only between two requests; it moves once a streak of requests has
//! asked one other shard and nobody else; a shard that is busy takes no connection, and one that is
//! not takes few at a time, so that a crowd around one cell stays spread.

/// Requests in a row that make a streak: a visitor who looks in does not move.
pub const STREAK: u8 = 16;

/// Connections that a shard takes between two samples of how busy it is.
pub const WELCOME: u64 = 4;

/// A shard that is busier than this takes none, in thousandths of the time.
pub const BUSY_MAX_PERMILLE: u64 = 500;

/// How many connections a shard takes until the next sample, if it was busy for so long in the last.
pub fn welcome(busy_permille: u64) -> u64 {
    if busy_permille <= BUSY_MAX_PERMILLE { WELCOME } else { 0 }
}

/// Whom the request under way has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nobody,
    Shard(u16),
    /// More than one shard, or a node: no shard is nearer than another.
    Several,
}

/// What the requests of one connection ask for.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    /// The shard that serves the connection.
    here: u16,
    asked: Asked,
    /// The shard that the last requests asked, and how many of them in a row.
    streak: (u16, u8),
}

impl Follow {
    /// A connection of this shard that has asked for nothing.
    pub fn new(here: u16) -> Self {
        Self { here, asked: Asked::Nobody, streak: (here, 0) }
    }

    /// The request under way calls a cell of this shard; `None`: a cell that another node serves.
    pub fn asks(&mut self, shard: Option<u16>) {
        self.asked = match (self.asked, shard) {
            (Asked::Nobody, Some(shard)) => Asked::Shard(shard),
            (Asked::Shard(one), Some(shard)) if one == shard => self.asked,
            (Asked::Nobody | Asked::Shard(_) | Asked::Several, _) => Asked::Several,
        };
    }

    /// The request is answered. Returns where its connection would be nearer to what it asks for.
    pub fn answered(&mut self) -> Option<u16> {
        match core::mem::replace(&mut self.asked, Asked::Nobody) {
            // What needs no cell is served as well anywhere.
            Asked::Nobody => {}
            Asked::Several => self.streak.1 = 0,
            Asked::Shard(shard) if shard == self.streak.0 => {
                self.streak.1 = (self.streak.1 + 1).min(STREAK);
            }
            Asked::Shard(shard) => self.streak = (shard, 1),
        }
        let (shard, length) = self.streak;
        (shard != self.here && length == STREAK).then_some(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of `count` requests that ask these shards each.
    fn after(follow: &mut Follow, count: u8, shards: &[Option<u16>]) -> Option<u16> {
        let mut last = None;
        for _ in 0..count {
            for shard in shards {
                follow.asks(*shard);
            }
            last = follow.answered();
        }
        last
    }

    #[test]
    fn a_streak_to_one_other_shard_moves_the_connection() {
        let mut follow = Follow::new(0);
        assert_eq!(after(&mut follow, STREAK - 1, &[Some(3)]), None);
        assert_eq!(after(&mut follow, 1, &[Some(3), Some(3)]), Some(3));
        // Nobody takes it yet: it still wants to go.
        assert_eq!(after(&mut follow, 200, &[Some(3)]), Some(3));
    }

    #[test]
    fn whoever_asks_here_or_everywhere_stays() {
        let mut follow = Follow::new(3);
        assert_eq!(after(&mut follow, 200, &[Some(3)]), None);
        assert_eq!(after(&mut follow, 200, &[Some(1), Some(3)]), None);
        assert_eq!(after(&mut follow, 200, &[Some(1), None]), None);
        assert_eq!(after(&mut follow, 200, &[None]), None);
        for _ in 0..200 {
            assert_eq!(after(&mut follow, 1, &[Some(1)]), None);
            assert_eq!(after(&mut follow, 1, &[Some(2)]), None);
        }
    }

    #[test]
    fn requests_without_a_cell_do_not_count() {
        let mut follow = Follow::new(0);
        assert_eq!(after(&mut follow, STREAK - 1, &[Some(3)]), None);
        assert_eq!(after(&mut follow, 200, &[]), None);
        assert_eq!(after(&mut follow, 1, &[Some(3)]), Some(3));
    }

    #[test]
    fn a_shard_that_is_busy_takes_nobody() {
        assert_eq!(welcome(0), WELCOME);
        assert_eq!(welcome(BUSY_MAX_PERMILLE), WELCOME);
        assert_eq!(welcome(BUSY_MAX_PERMILLE + 1), 0);
    }
}
