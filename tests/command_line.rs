//! The program as a person meets it: what it prints where, and with which exit code it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn celld(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CELLD_") || name.starts_with("AWS_") || name == "S3_ENDPOINT" {
            command.env_remove(&name);
        }
    }
    command
        .args(args)
        .envs(variables.iter().copied())
        .env("RUST_BACKTRACE", "1")
        .output()
        .expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

/// Asserts that the start was refused with these words, on stderr and without a backtrace.
fn refused(output: &Output, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert!(
        output.stdout.is_empty() && !text.contains("panicked") && !text.contains("backtrace"),
        "{text}"
    );
}

fn project(text: &str, main: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("wrangler.jsonc"), text).expect("write");
    std::fs::write(dir.path().join("index.js"), main).expect("write");
    dir
}

const GOOD: &str = r#"{ "name": "app", "main": "index.js", "compatibility_date": "2026-01-31" }"#;

#[test]
fn help_and_version_go_to_stdout() {
    for args in
        [&["--help"] as &[&str], &["dev", "--help"], &["deploy", "--help"], &["diagnose", "--help"]]
    {
        let output = celld(args, &[]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Usage: celld") && output.stderr.is_empty());
    }
    let text = stdout(&celld(&["--help"], &[]));
    for word in ["dev", "deploy", "--bucket", "CELLD_BUCKET", "CELLD_DURABILITY", "  3 "] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    assert_eq!(
        stdout(&celld(&["--version"], &[])),
        format!("celld {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn the_short_form_of_help_is_the_same() {
    for command in [&[] as &[&str], &["dev"], &["deploy"], &["cell", "move"]] {
        let help = |form| celld(&[command, &[form]].concat(), &[]);
        let (short, long) = (help("-h"), help("--help"));
        assert_eq!(short.status.code(), Some(0), "{}", stderr(&short));
        assert_eq!(stdout(&short), stdout(&long));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    refused(&celld(&[], &[]), &["--bucket", "CELLD_BUCKET"]);
    refused(&celld(&["--buckt=x"], &[]), &["--bucket"]);
    refused(&celld(&["dev", "--port", "x"], &[]), &["--port=\"x\"", "65535"]);
    refused(&celld(&["--bucket", "r2://b"], &[]), &["--bucket=\"r2://b\"", "file:///", "s3://"]);
    refused(&celld(&["--bucket", "file:///"], &[]), &["file:///", "root of the file system"]);
    refused(&celld(&["--bucket", "s3://bucket"], &[]), &["s3://bucket", "--region", "AWS_REGION"]);
    refused(
        &celld(&["--bucket", "s3://bucket", "--endpoint", "here:9000"], &[]),
        &["--endpoint=\"here:9000\"", "http://"],
    );
    refused(
        &celld(&["--bucket", "s3://bucket"], &[("S3_ENDPOINT", "http://here/path")]),
        &["http://here/path", "has a path"],
    );
    refused(
        &celld(&["--bucket=s3://bucket", "--region=here", "--ca-file=/nowhere.pem"], &[]),
        &["/nowhere.pem"],
    );
    refused(
        &celld(&[], &[("CELLD_BUCKET", "file:///b"), ("CELLD_TTL_MS", "soon")]),
        &["CELLD_TTL_MS=\"soon\""],
    );
    refused(
        &celld(&["--durability", "fleet"], &[("CELLD_BUCKET", "file:///b")]),
        &["--durability=\"fleet\"", "no copies of the log"],
    );
    refused(&celld(&["deploy", &example("counter")], &[]), &["--bucket"]);
    refused(&celld(&["dev", "/nowhere"], &[]), &["/nowhere"]);
}

#[test]
fn a_flag_beats_a_variable() {
    let output = celld(&["--bucket", "s4://typed"], &[("CELLD_BUCKET", "s4://environment")]);
    refused(&output, &["--bucket=\"s4://typed\""]);
    let variables = [("S3_ENDPOINT", "environment"), ("CELLD_BUCKET", "s3://bucket")];
    refused(&celld(&["--endpoint", "typed"], &variables), &["--endpoint=\"typed\""]);
}

#[test]
fn a_fault_of_the_project_is_refused_with_its_place() {
    let dir = project("{\n  \"name\": \"app\",\n  \"mian\": \"index.js\"\n}", "");
    let output = celld(&["deploy", "--dry-run", dir.path().to_str().expect("UTF-8")], &[]);
    refused(
        &output,
        &["wrangler.jsonc:3:3: the key \"mian\" is not known", "\"main\"", "compatibility_date"],
    );
}

#[test]
fn a_dry_run_writes_nothing_and_says_what_would_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let bucket = dir.path().join("bucket");
    let url = format!("file://{}", bucket.display());
    let output =
        celld(&["deploy", &example("guestbook"), "--dry-run", "--json", "--bucket", &url], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!((&document["dry_run"], &document["name"]), (&true.into(), &"guestbook".into()));
    assert_eq!(document["durable_objects"][0]["namespace"], "guestbook.Guestbook");
    assert_eq!(document["modules"].as_array().map(Vec::len), Some(3));
    assert!(!bucket.exists());
}

#[test]
fn what_no_node_would_serve_is_not_deployed() {
    let bound = r#", "durable_objects": { "bindings": [{ "name": "C", "class_name": "Cell" }] },
        "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Cell"] }] }"#;
    let bound = GOOD.replace(" }", bound);
    for (text, code, words) in [
        (
            bound.as_str(),
            "export class Cel {} export class Other {} export default {};",
            &["binding \"C\"", "class \"Cell\"", "it exports \"Cel\", \"Other\""] as &[&str],
        ),
        (&bound, "export default {};", &["it exports no class"]),
        (GOOD, "throw new RangeError('at the top');", &["RangeError: at the top", "index.js:1"]),
        (GOOD, "export default {", &["SyntaxError", "index.js:1"]),
    ] {
        let dir = project(text, code);
        let dir = dir.path().to_str().expect("UTF-8");
        let bucket = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", bucket.path().join("bucket").display());
        for args in [&["deploy", dir, "--dry-run"] as &[&str], &["deploy", dir, "--bucket", &url]] {
            let output = celld(args, &[]);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{code}: {said}");
            assert!(words.iter().all(|word| said.contains(word)), "{code}: {said}");
            assert!(said.contains("no node would serve"), "{said}");
        }
        assert!(!bucket.path().join("bucket").exists(), "nothing was written");
    }
}

#[test]
fn a_record_of_the_deployment_that_is_damaged_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().join("bucket").display());
    let source = project(GOOD, "export default { fetch() { return new Response('1') } }");
    let deploy =
        || celld(&["deploy", source.path().to_str().expect("UTF-8"), "--bucket", &url], &[]);
    assert_eq!(deploy().status.code(), Some(0));
    let objects = deployed(dir.path());
    let current = objects.iter().find(|path| path.ends_with("deploy@/current.json"));
    let current = current.expect("the record");
    std::fs::write(current, "{\"format\": 1").expect("damage");
    let output = deploy();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in ["deploy/current.json cannot be used", "older copy", "delete it and deploy again"]
    {
        assert!(said.contains(words), "{said}");
    }
    std::fs::remove_file(current).expect("the advice");
    assert_eq!(deploy().status.code(), Some(0));
}

/// All objects below `deploy/` of a bucket that is a directory.
fn deployed(bucket: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![bucket.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("read").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else if entry.path().to_string_lossy().contains("deploy") {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn a_deployment_moves_and_the_same_one_does_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().join("bucket").display());
    let source = project(GOOD, "export default { fetch() { return new Response('1') } }");
    let source_dir = source.path().to_str().expect("UTF-8");
    let deploy = || {
        let output = celld(&["deploy", source_dir, "--json"], &[("CELLD_BUCKET", &url)]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("one JSON document")
    };
    let first = deploy();
    assert_eq!(
        (&first["unchanged"], &first["previous"]),
        (&false.into(), &serde_json::Value::Null)
    );
    let objects = deployed(dir.path()).len();
    assert!(objects >= 3, "{objects}");
    let again = deploy();
    assert_eq!((&again["unchanged"], &again["version"]), (&true.into(), &first["version"]));
    assert_eq!(deployed(dir.path()).len(), objects);
    std::fs::write(
        source.path().join("index.js"),
        "export default { fetch() { return new Response('2') } }",
    )
    .expect("write");
    let second = deploy();
    assert_eq!(second["previous"], first["version"]);
    assert_ne!(second["version"], first["version"]);
}

#[test]
fn a_class_that_is_served_goes_by_a_migration_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().join("bucket").display());
    let text =
        |migrations: &str| GOOD.replace(" }", &format!(", \"migrations\": [{migrations}] }}"));
    let deploy = |migrations: &str| {
        let source = project(&text(migrations), "export default {}");
        celld(&["deploy", source.path().to_str().expect("UTF-8"), "--bucket", &url], &[])
    };
    let first = r#"{ "tag": "v1", "new_sqlite_classes": ["A"] }"#;
    assert_eq!(deploy(first).status.code(), Some(0));
    let lost = deploy(r#"{ "tag": "v1", "new_sqlite_classes": ["B"] }"#);
    assert_eq!(lost.status.code(), Some(1));
    assert!(stderr(&lost).contains("the class \"A\""), "{}", stderr(&lost));
    let renamed = deploy(&format!(
        "{first}, {{ \"tag\": \"v2\", \"renamed_classes\": [{{ \"from\": \"A\", \"to\": \"B\" }}] }}"
    ));
    assert_eq!(renamed.status.code(), Some(0), "{}", stderr(&renamed));
    let deleted = deploy(&format!("{first}, {{ \"tag\": \"v2\", \"deleted_classes\": [\"A\"] }}"));
    assert_eq!(deleted.status.code(), Some(0), "{}", stderr(&deleted));
}

#[test]
fn a_build_that_fails_is_told_readably() {
    let dir = project(GOOD, "import './lost.js'");
    let output =
        celld(&["deploy", "--dry-run", "--json", dir.path().to_str().expect("UTF-8")], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("index.js:1: imports \"./lost.js\", which does not exist"),
        "{}",
        stderr(&output)
    );
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(document["ok"], false);
}

/// The help of each command that a line of the readme calls, by the words after `celld`.
fn help_for(words: &str) -> String {
    let command =
        ["dev", "deploy", "diagnose"].into_iter().find(|name| words.trim_start().starts_with(name));
    stdout(&celld(&command.into_iter().chain(["--help"]).collect::<Vec<_>>(), &[]))
}

/// Options in a line, without what follows them.
fn options(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|word| {
        word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_alphabetic()))
    })
}

#[test]
fn the_readme_names_only_options_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).expect("the readme");
    let mut checked = 0;
    for line in readme.lines() {
        // A table's row, or what is typed at a prompt. `scripts/dev` hands its options on.
        let calls = [("| `celld ", ""), ("$ celld ", ""), ("$ scripts/dev", "dev")];
        for (opening, command) in calls {
            let Some(rest) = line.strip_prefix(opening) else { continue };
            let help = help_for(&format!("{command}{rest}"));
            for option in options(rest) {
                assert!(help.contains(option), "{option} of {line:?} is not in:\n{help}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 15, "only {checked} options were found in the readme");
}

#[test]
fn the_documents_name_only_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tops = ["src/", "docs/", "examples/", "scripts/", "third_party/", "bench/", "tests/"];
    let mut checked = 0;
    for document in ["README.md", "docs/architecture.md", "docs/diagnose.md", "bench/README.md"] {
        let text = std::fs::read_to_string(root.join(document)).expect("a document");
        for name in text.split('`').skip(1).step_by(2) {
            // `scripts/dev DIR` names a file, too. A module may be named without its ending.
            let name = name.split_whitespace().next().unwrap_or_default();
            if tops.iter().any(|top| name.starts_with(top)) {
                let there = root.join(name).exists() || root.join(format!("{name}.rs")).exists();
                assert!(there, "{document} names {name:?}, which is not there");
                checked += 1;
            }
        }
    }
    assert!(checked >= 20, "only {checked} names were found");
}
