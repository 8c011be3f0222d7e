//! The order and the spelling of words, which argh does not care for.
//!
//! argh 0.1 refuses `--port=99`, wants options of the program before its subcommand, and offers no
//! spelling help. [`in_order`] and [`explain`] make up for it before and after argh runs, so that
//! `celld --bucket=URL deploy` and `celld deploy --bucket URL` are the same. What commands and options
//! there are is argh's to tell.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind};

use crate::cli::spelling::nearest;

/// Splits `--key=value`, and tells the command from the other words, so that options before it belong
/// to it as well. `cell` has commands of its own. A word after `--` is left alone.
pub(super) fn in_order(
    program: &CommandInfoWithArgs,
    args: Vec<String>,
) -> (Vec<String>, Vec<String>) {
    let mut words = Vec::with_capacity(args.len() + 1);
    let mut command: Vec<String> = Vec::new();
    let mut plain = false;
    let mut value_follows = false;
    // After the first word that is neither an option nor the value of one nothing is a command.
    let mut is_complete = false;
    for arg in args {
        if plain || value_follows {
            value_follows = false;
            words.push(arg);
        } else if arg == "--" {
            plain = true;
            words.push(arg);
        } else if arg == "-h" {
            words.push("--help".to_owned());
        } else if arg.starts_with("--")
            && let Some((key, value)) = arg.split_once('=')
        {
            words.extend([key.to_owned(), value.to_owned()]);
        } else if arg.starts_with('-') {
            value_follows = takes_value(program, &arg);
            words.push(arg);
        } else if !is_complete && names(of(program, &command)).any(|name| name == arg) {
            command.push(arg);
        } else {
            is_complete = true;
            words.push(arg);
        }
    }
    (command, words)
}

/// Whether a word is an option with a value, of whichever command.
fn takes_value(command: &CommandInfoWithArgs, word: &str) -> bool {
    let is_short = |short| word.strip_prefix('-').is_some_and(|rest| rest.chars().eq([short]));
    let is_meant = |flag: &FlagInfo<'_>| flag.long == word || flag.short.is_some_and(is_short);
    let has_value = |flag: &FlagInfo<'_>| matches!(flag.kind, FlagInfoKind::Option { .. });
    command.flags.iter().any(|flag| has_value(flag) && is_meant(flag))
        || command.commands.iter().any(|next| takes_value(&next.command, word))
}

/// What is known of a command; of the program if there is none.
fn of<'a>(program: &'a CommandInfoWithArgs, command: &[String]) -> &'a CommandInfoWithArgs {
    command.iter().fold(program, |before, name| {
        let next = before.commands.iter().find(|next| next.name == name);
        &next.expect("the command was found before").command
    })
}

/// The commands that may follow.
fn names(command: &CommandInfoWithArgs) -> impl Iterator<Item = &str> {
    command.commands.iter().map(|next| next.name)
}

/// argh's message, with the nearest spelling where it did not know a word.
pub(super) fn explain(
    program: &CommandInfoWithArgs,
    output: &str,
    command: &[String],
    words: &[String],
) -> String {
    let typed = ["celld"].into_iter().chain(command.iter().map(String::as_str));
    let typed = typed.collect::<Vec<_>>().join(" ");
    let output = output.trim_end();
    let unknown = output.strip_prefix("Unrecognized argument: ");
    let unknown = unknown.and_then(|rest| rest.lines().next()).map(str::trim);
    let better = unknown.and_then(|word| {
        let known = of(program, command);
        let is_option = word.starts_with('-');
        let next: Vec<&str> = names(known).collect();
        if is_option && !command.is_empty() && !next.is_empty() {
            // Which command is meant, and so whether it has this option, nobody knows.
            return Some(format!("`{typed}` wants one of these behind it: {}", next.join(", ")));
        }
        let is_command = !is_option && !next.is_empty();
        let options: Vec<&str> = known.flags.iter().map(|flag| flag.long).collect();
        // argh may name a part of a word.
        let is_typed = words.iter().any(|typed| typed == word);
        match nearest(word, if is_command { &next } else { &options }) {
            Some(guess) if is_typed => {
                Some(format!("{word:?} is not known; did you mean {guess:?}?"))
            }
            _ if is_command => {
                Some(format!("{word:?} is no command; they are: {}", next.join(", ")))
            }
            Some(_) | None => None,
        }
    });
    let said = better.as_deref().unwrap_or(output);
    format!("{said}\n(run `{typed} --help` for all options)")
}
