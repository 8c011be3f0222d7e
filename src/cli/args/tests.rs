//! What a person may type, and what comes of it.

use super::*;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn usage(line: &str) -> String {
    match parse(words(line)) {
        Err(Stop::Usage(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_value_may_follow_an_equals_sign_or_a_blank() {
    for line in [
        "dev --port=99 dir",
        "dev --port 99 dir",
        "dev dir --port=99",
        "--port=99 dev dir",
        "--port 99 dev dir",
    ] {
        let Ok(Command::Dev(dev)) = parse(words(line)) else { panic!("{line}") };
        assert_eq!(
            (dev.port.as_deref(), dev.dir),
            (Some("99"), Some(PathBuf::from("dir"))),
            "{line}"
        );
    }
}

#[test]
fn a_value_with_an_equals_sign_stays_whole() {
    let Ok(Command::Node(node)) = parse(words("--bucket=file:///a=b")) else { panic!() };
    assert_eq!(node.bucket.as_deref(), Some("file:///a=b"));
}

#[test]
fn options_before_the_command_belong_to_it() {
    let Ok(Command::Deploy(deploy)) = parse(words("--bucket file:///b deploy --json")) else {
        panic!()
    };
    assert_eq!((deploy.bucket.as_deref(), deploy.json), (Some("file:///b"), true));
}

#[test]
fn a_command_of_cells_may_have_its_options_anywhere() {
    for line in [
        "cell show app.Room --name lobby",
        "cell --name lobby show app.Room",
        "--name=lobby cell show app.Room",
    ] {
        let Ok(Command::Cell(Cell { command: CellCommand::Show(show) })) = parse(words(line))
        else {
            panic!("{line}")
        };
        assert_eq!((show.cell.as_str(), show.name.as_deref()), ("app.Room", Some("lobby")));
    }
}

#[test]
fn a_directory_may_be_called_like_a_command() {
    let Ok(Command::Dev(dev)) = parse(words("dev deploy")) else { panic!() };
    assert_eq!(dev.dir, Some(PathBuf::from("deploy")));
    let Ok(Command::Node(node)) = parse(words("--node dev --bucket file:///b")) else { panic!() };
    assert_eq!(node.node.as_deref(), Some("dev"));
}

#[test]
fn a_misspelt_word_is_answered_with_the_nearest() {
    assert!(usage("dev --prot 1").contains("\"--port\""), "{}", usage("dev --prot 1"));
    assert!(usage("deploj").contains("\"deploy\""), "{}", usage("deploj"));
    assert!(usage("--buckt file:///b").contains("\"--bucket\""));
    assert!(usage("deploy --port 1").contains("celld deploy --help"));
    assert!(usage("examples/counter").contains("no command; they are: dev, deploy, diagnose"));
    assert!(usage("cell lits").contains("\"list\""), "{}", usage("cell lits"));
    assert!(usage("cell x").contains("no command; they are: list"), "{}", usage("cell x"));
    assert!(usage("cell list --limt 1").contains("\"--limit\""));
}

#[test]
fn help_and_version_are_answers() {
    for line in ["--version", "-V", "dev --version", "deploy . -V"] {
        let Err(Stop::Answer(text)) = parse(words(line)) else { panic!("{line}") };
        assert!(text.starts_with("celld "), "{text}");
    }
    let Err(Stop::Answer(text)) = parse(words("--help")) else { panic!() };
    for word in ["--drain-timeout", "--help", "deploy", "CELLD_TTL_MS", "AWS_*", "S3_ENDPOINT"] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    for (line, known) in [
        ("dev -h", "--no-watch"),
        ("deploy --help", "--dry-run"),
        ("diagnose --help", "--ca-file"),
        ("cell --help", "purge"),
        ("--help cell move", "--endpoint"),
    ] {
        let Err(Stop::Answer(text)) = parse(words(line)) else { panic!("{line}") };
        assert!(text.contains(known), "{known} is not in:\n{text}");
    }
}

#[test]
fn an_option_before_a_command_that_is_missing_asks_for_the_command() {
    let text = usage("cell --bucket file:///b");
    assert!(text.contains("`celld cell` wants one of these behind it: list, show"), "{text}");
    assert!(text.contains("celld cell --help"), "{text}");
}
