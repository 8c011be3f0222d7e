//! Shows on stderr how far something is: a bar that a terminal redraws, plain lines elsewhere.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// See the module.
pub(crate) struct Progress {
    has_bars: bool,
}

impl Progress {
    /// For this process's stderr.
    pub(crate) fn new() -> Self {
        Self { has_bars: std::io::stderr().is_terminal() }
    }

    /// What begins now.
    pub(crate) fn says(&self, what: &str) {
        celld_rt::log!("celld: {what}");
    }

    /// A bar of `total` steps, which whoever moves it takes away at the end. Elsewhere than on a
    /// terminal it draws nothing.
    ///
    /// # Panics
    /// Never: the template is good.
    pub(crate) fn bar(&self, total: u64, what: &'static str) -> ProgressBar {
        let target =
            if self.has_bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {msg}");
        let style = style.expect("the template is good").progress_chars("##.");
        ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what)
    }

    /// A line for each step, where there are no bars.
    pub(crate) fn line(&self, text: &str) {
        if !self.has_bars {
            celld_rt::log!("celld: {text}");
        }
    }
}
