//! What no lint sees: each file says what it is, stays readable in size, and holds none of the
//! words that a finished file does not hold.

use std::fs;
use std::path::{Path, PathBuf};

/// Past this many lines a file is two things; see docs/architecture.md for where they go.
const LINES_MAX: usize = 700;
/// Where our own text is.
const ROOTS: [&str; 7] = ["src", "bench", "tests", "examples", "scripts", "docs", ".ci"];
/// Endings of files that hold it.
const ENDINGS: [&str; 11] =
    ["rs", "js", "mjs", "ts", "py", "toml", "md", "html", "jsonc", "txt", ""];

/// Spelt in two halves, so that this file does not hold them.
fn banned() -> Vec<(String, &'static str)> {
    let word = |halves: [&str; 2]| halves.concat();
    vec![
        (word(["TO", "DO"]), "do it, or write an issue"),
        (word(["FIX", "ME"]), "fix it, or write an issue"),
        (word(["XX", "X"]), "say what is wrong"),
        (word(["/ro", "ot/"]), "a path of one machine"),
        (word(["/home", "/"]), "a path of one machine"),
        (word(["/wo", "rk/"]), "a path of one machine"),
        (word(["#[ig", "nore"]), "a test that does not run proves nothing"),
    ]
}

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<PathBuf> =
        ROOTS.iter().map(|name| root.join(name)).filter(|path| path.exists()).collect();
    let mut found = Vec::new();
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).expect("a directory that can be read") {
            let path = entry.expect("an entry that can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(
                    name.as_str(),
                    "node_modules" | "target" | ".celld" | "proptest-regressions" | "corpus"
                ) {
                    open.push(path);
                }
            } else if ENDINGS
                .contains(&path.extension().unwrap_or_default().to_string_lossy().as_ref())
            {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "only {} files were found", found.len());
    found.sort();
    found
}

/// Collects what `fault` says of each file, and fails with all of it.
fn each(fault: impl Fn(&Path, &str) -> Option<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    for path in files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let short = path.strip_prefix(root).unwrap_or(&path);
        faults.extend(fault(&path, &text).map(|fault| format!("{}: {fault}", short.display())));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn ending(path: &Path) -> &str {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

#[test]
fn each_file_of_code_says_what_it_is() {
    each(|path, text| {
        let opens = match ending(path) {
            "rs" => text.starts_with("//!") || text.starts_with("#![") && text.contains("//!"),
            "py" => {
                text.starts_with("#!")
                    && text.lines().nth(1).is_some_and(|line| line.starts_with("\"\"\""))
            }
            "js" | "mjs" | "ts" => text.starts_with("//") || text.starts_with("/*"),
            "" => {
                text.lines()
                    .nth(1)
                    .is_some_and(|line| text.starts_with("#!") && line.starts_with("# "))
                    || !text.starts_with("#!")
            }
            _ => true,
        };
        (!opens).then(|| "does not open with a line that says what it is".to_owned())
    });
}

#[test]
fn no_file_of_code_is_too_long() {
    each(|path, text| {
        let lines = text.lines().count();
        (matches!(ending(path), "rs" | "js" | "mjs") && lines > LINES_MAX)
            .then(|| format!("has {lines} lines; {LINES_MAX} are the most"))
    });
}

#[test]
fn no_file_holds_a_banned_word() {
    let banned = banned();
    each(|_, text| {
        let mut lines = text.lines().enumerate();
        lines.find_map(|(at, line)| {
            let (word, why) = banned.iter().find(|(word, _)| line.contains(word.as_str()))?;
            Some(format!("line {} holds {word:?}: {why}", at + 1))
        })
    });
}

#[test]
fn each_ban_of_clippy_says_why() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("clippy.toml"))
        .expect("clippy.toml");
    let entries = text.lines().filter(|line| line.trim_start().starts_with('{'));
    let silent: Vec<_> = entries.filter(|line| !line.contains("reason = \"")).collect();
    assert!(silent.is_empty(), "{silent:?}");
}

#[test]
fn the_checks_of_this_file_can_fail() {
    let holds = |text: &str| banned().iter().any(|(word, _)| text.contains(word.as_str()));
    assert!(
        holds(&format!("// {}{}: later", "TO", "DO"))
            && holds(&format!("cd {}{}x", "/home", "/"))
            && !holds("// done")
    );
}
