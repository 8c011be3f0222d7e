//! What the compatibility date and flags of a script switch.
//!
//! Source: workerd's `compatibility-date`: names, and the dates from which each is on by itself.

use crate::script::Script;

/// A behaviour that depends on the date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Switches it on.
    on: &'static str,
    /// Switches it off.
    off: &'static str,
    /// On from this date.
    since: &'static str,
}

/// `deleteAll()` deletes the alarm too.
pub(crate) const DELETE_ALL_DELETES_ALARM: Flag =
    Flag { on: "delete_all_deletes_alarm", off: "delete_all_preserves_alarm", since: "2026-02-24" };

/// `WebSocket.binaryType` is `blob` until a script sets it.
pub(crate) const WEBSOCKET_BLOBS: Flag = Flag {
    on: "websocket_standard_binary_type",
    off: "no_websocket_standard_binary_type",
    since: "2026-03-17",
};
/// A Close of the other side is answered without the script's doing.
pub(crate) const WEBSOCKET_REPLIES: Flag = Flag {
    on: "web_socket_auto_reply_to_close",
    off: "web_socket_manual_reply_to_close",
    since: "2026-04-07",
};

/// `ctx.exports` is there.
pub(crate) const CTX_EXPORTS: Flag =
    Flag { on: "enable_ctx_exports", off: "disable_ctx_exports", since: "2025-11-17" };

/// What a flag of this name, as a configuration gives it, contradicts. `None`: it switches nothing.
pub fn opposite(name: &str) -> Option<&'static str> {
    [DELETE_ALL_DELETES_ALARM, WEBSOCKET_BLOBS, WEBSOCKET_REPLIES, CTX_EXPORTS]
        .iter()
        .flat_map(|flag| [(flag.on, flag.off), (flag.off, flag.on)])
        .find_map(|(this, other)| (this == name).then_some(other))
}

impl Script {
    /// Whether the behaviour is on.
    pub(crate) fn has(&self, flag: Flag) -> bool {
        let named = |name: &str| self.compatibility_flags.iter().any(|flag| flag == name);
        // Dates are written so that they compare as text.
        named(flag.on) || !named(flag.off) && self.compatibility_date.as_str() >= flag.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_date() {
        let has = |date: &str, flags: &[&str]| {
            let script = Script {
                compatibility_date: date.to_owned(),
                compatibility_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                ..Script::default()
            };
            script.has(DELETE_ALL_DELETES_ALARM)
        };
        assert!(has("2026-02-24", &[]) && !has("2026-02-23", &[]) && !has("", &[]));
        assert!(has("2020-01-01", &["delete_all_deletes_alarm"]));
        assert!(!has("2026-11-01", &["delete_all_preserves_alarm"]));
    }
}
