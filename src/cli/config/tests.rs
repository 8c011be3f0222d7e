//! What a wrangler file comes to, and what its faults say.

use super::*;

const PLAIN: &str = r#"{
  "name": "app",
  "main": "src/index.js",
  "compatibility_date": "2026-01-31",
  "durable_objects": { "bindings": [{ "name": "C", "class_name": "Counter" }] },
  "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Counter"] }],
  "vars": { "GREETING": "hi", "NESTED": { "a": [1, 2] } }
}"#;

fn read(text: &str, purpose: Purpose) -> Result<Project, String> {
    with(text, "wrangler.jsonc", None, purpose)
}

fn with(
    text: &str,
    name: &str,
    environment: Option<&str>,
    purpose: Purpose,
) -> Result<Project, String> {
    let problems = |problems: Vec<Problem>| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    parse(text, name, Path::new("/p"), environment, purpose).map_err(problems)
}

/// `PLAIN` with one more key.
fn plus(extra: &str) -> String {
    PLAIN.replacen('{', &format!("{{\n{extra},"), 1)
}

#[test]
fn a_plain_project_is_understood() {
    let project = read(PLAIN, Purpose::Deploy).expect("good");
    assert_eq!((project.name.as_str(), project.main.as_path()), ("app", Path::new("src/index.js")));
    let object = DurableObject {
        binding: "C".into(),
        class_name: "Counter".into(),
        namespace: "app.Counter".into(),
    };
    assert_eq!(project.durable_objects, [object]);
    assert_eq!(project.vars["NESTED"]["a"][1], 2);
    assert_eq!(project.migration_tag.as_deref(), Some("v1"));
    assert!(project.notes.is_empty(), "{:?}", project.notes);
}

#[test]
fn toml_says_the_same() {
    let text = "name = \"app\"\nmain = \"src/index.js\"\ncompatibility_date = \"2026-01-31\"\n[vars]\nN = 1\n\
        [[durable_objects.bindings]]\nname = \"C\"\nclass_name = \"Counter\"\n[[migrations]]\ntag = \"v1\"\nnew_sqlite_classes = [\"Counter\"]\n";
    let project = with(text, "wrangler.toml", None, Purpose::Deploy).expect("good");
    assert_eq!(project.durable_objects[0].namespace, "app.Counter");
    assert_eq!(project.vars["N"], 1);
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest() {
    let text = read(&plus("  \"compatability_date\": 1"), Purpose::Dev).expect_err("unknown");
    assert_eq!(
        text,
        "2:3: the key \"compatability_date\" is not known; did you mean \"compatibility_date\"?"
    );
    let text = read(&PLAIN.replace("class_name", "classname"), Purpose::Dev).expect_err("unknown");
    assert!(text.contains("did you mean \"class_name\"?"), "{text}");
}

#[test]
fn compatibility_flags_are_known_or_refused() {
    let flags = |list: &str| plus(&format!("\"compatibility_flags\": [{list}]"));
    let good = "\"delete_all_preserves_alarm\", \"web_socket_auto_reply_to_close\"";
    let project = read(&flags(good), Purpose::Deploy).expect("good");
    assert_eq!(project.compatibility_flags.len(), 2);
    assert!(project.notes.is_empty(), "{:?}", project.notes);
    let project = read(&flags("\"global_navigator\""), Purpose::Deploy).expect("known");
    assert_eq!(
        project.notes,
        ["the compatibility flag \"global_navigator\" switches nothing in this version"]
    );
    for (others, words) in [
        ("\"global_navigator\", \"global_navigator\"", "\"global_navigator\" is given twice"),
        (
            "\"delete_all_preserves_alarm\", \"delete_all_deletes_alarm\"",
            "\"delete_all_preserves_alarm\" and \"delete_all_deletes_alarm\" contradict each other",
        ),
    ] {
        let text = read(&flags(others), Purpose::Dev).expect_err(others);
        assert!(text.starts_with("2:") && text.contains(words), "{text}");
    }
    for (flag, words) in [
        ("delete_all_preserve_alarm", "did you mean \"delete_all_preserves_alarm\"?"),
        ("nonsense", "\"nonsense\" is not known"),
        ("nodejs_compat", "there are no modules of Node.js"),
        ("python_workers", "Python"),
    ] {
        let text = read(&flags(&format!("\"{flag}\"")), Purpose::Dev).expect_err(flag);
        assert!(text.starts_with("2:") && text.contains(words), "{flag}: {text}");
    }
}

#[test]
fn a_date_in_the_future_is_refused() {
    let dated = |date: &str| PLAIN.replace("2026-01-31", date);
    assert!(read(&dated(&clock::today()), Purpose::Deploy).is_ok());
    let text = read(&dated("2999-01-01"), Purpose::Dev).expect_err("the future");
    assert!(text.contains("in the future; today is 2"), "{text}");
}

#[test]
fn all_faults_are_told_at_once_in_the_order_of_the_file() {
    let text = read(
        "{\n\"name\": \"A b\",\n\"main\": \"../x.js\",\n\"vars\": 1,\n\"limits\": {\"cpu_ms\": 0}\n}",
        Purpose::Deploy,
    );
    let lines: Vec<String> = text.expect_err("faults").lines().map(str::to_owned).collect();
    let starts = [
        "\"compatibility_date\" is missing",
        "2:9: the name",
        "3:9: main \"../x.js\" leads out",
        "4:9: vars must be a table",
        "5:22: limits.cpu_ms",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn a_binding_that_is_not_served_is_named() {
    for (extra, name) in [
        (r#""kv_namespaces": [{ "binding": "CACHE", "id": "x" }]"#, "KV namespace \"CACHE\""),
        (
            r#""queues": { "producers": [{ "binding": "JOBS", "queue": "jobs" }] }"#,
            "queue \"JOBS\"",
        ),
        (
            r#""queues": { "consumers": [{ "queue": "jobs", "max_batch_size": 5 }] }"#,
            "queue \"jobs\"",
        ),
        (r#""d1_databases": [{ "binding": "DB", "database_name": "d" }]"#, "D1 database \"DB\""),
        (r#""r2_buckets": [{ "binding": "FILES", "bucket_name": "f" }]"#, "R2 bucket \"FILES\""),
        (
            r#""workflows": [{ "binding": "FLOW", "name": "f", "class_name": "F" }]"#,
            "workflow \"FLOW\"",
        ),
        (r#""services": [{ "binding": "OTHER", "service": "o" }]"#, "service \"OTHER\""),
        (r#""assets": { "directory": "public", "binding": "ASSETS" }"#, "static assets \"ASSETS\""),
        (r#""ai": { "binding": "AI" }"#, "AI binding \"AI\""),
        (r#""tail_consumers": [{ "service": "t" }]"#, "tail consumer"),
    ] {
        for purpose in [Purpose::Dev, Purpose::Deploy] {
            let text = read(&plus(extra), purpose).expect_err(extra);
            assert!(text.contains(name) && text.contains("not supported"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
    read(&plus(r#""kv_namespaces": [], "queues": {}, "unsafe": {}"#), Purpose::Deploy)
        .expect("nothing is asked for");
}

#[test]
fn keys_of_the_network_get_one_note() {
    let project = read(
        &plus(r#""$schema": "x", "workers_dev": true, "observability": { "enabled": true }"#),
        Purpose::Deploy,
    )
    .expect("good");
    assert_eq!(project.notes.len(), 2, "{:?}", project.notes);
}

#[test]
fn crons_wait_for_a_hand_in_development_and_stop_a_deployment() {
    let text = plus(r#""triggers": { "crons": ["*/5 * * * *"] }"#);
    assert_eq!(read(&text, Purpose::Dev).expect("good").crons, ["*/5 * * * *"]);
    assert!(read(&text, Purpose::Deploy).expect_err("crons").contains("triggers.crons"));
    let text = plus(r#""triggers": { "crons": ["* *"] }"#);
    assert!(read(&text, Purpose::Dev).expect_err("two fields").contains("it needs 5"));
}

#[test]
fn a_class_without_a_migration_serves_in_development_only() {
    let text = PLAIN.replace("[\"Counter\"]", "[\"Countr\"]");
    let project = read(&text, Purpose::Dev).expect("good");
    assert_eq!(project.durable_objects[0].namespace, "app.Counter");
    assert!(project.notes[0].contains("did you mean the class \"Countr\"?"), "{:?}", project.notes);
    let text = read(&text, Purpose::Deploy).expect_err("no migration");
    assert!(
        text.contains("no migration creates the class \"Counter\"")
            && text.contains("new_sqlite_classes"),
        "{text}"
    );
}

#[test]
fn a_class_of_another_script_is_refused() {
    let text = PLAIN.replace("\"class_name\"", "\"script_name\": \"other\", \"class_name\"");
    assert!(
        read(&text, Purpose::Dev)
            .expect_err("foreign")
            .contains("the Durable Object binding \"C\" with \"script_name\"")
    );
}

#[test]
fn an_environment_inherits_what_wrangler_lets_it_inherit() {
    let text = plus(
        r#""minify": true, "env": { "prod": { "vars": { "GREETING": "ho" } }, "named": { "name": "other" } }"#,
    );
    let project = with(&text, "wrangler.json", Some("prod"), Purpose::Deploy).expect("good");
    assert_eq!(
        (project.name.as_str(), project.vars["GREETING"].as_str()),
        ("app-prod", Some("ho"))
    );
    assert!(project.build.minify && project.durable_objects.is_empty());
    assert!(
        project.notes.iter().any(|note| note.contains("\"durable_objects\"")),
        "{:?}",
        project.notes
    );
    assert_eq!(project.classes["Counter"], "app-prod.Counter");
    let project = with(&text, "wrangler.json", Some("named"), Purpose::Deploy).expect("good");
    assert_eq!(project.name, "other");
    let text = with(&text, "wrangler.json", Some("pord"), Purpose::Deploy).expect_err("unknown");
    assert!(text.contains("did you mean \"prod\"?"), "{text}");
}

#[test]
fn a_fault_in_an_environment_that_is_not_chosen_is_found_too() {
    let text = plus(r#""env": { "prod": { "mian": "x", "dev": {} } }"#);
    let text = read(&text, Purpose::Dev).expect_err("faults");
    assert!(
        text.contains("\"mian\"") && text.contains("\"dev\" belongs to the top level"),
        "{text}"
    );
}

#[test]
fn development_forgives_a_missing_date() {
    let text = PLAIN.replace("\"compatibility_date\": \"2026-01-31\",", "");
    assert!(clock::is_date(&read(&text, Purpose::Dev).expect("good").compatibility_date));
    assert!(read(&text, Purpose::Deploy).expect_err("no date").contains("compatibility_date"));
}

#[test]
fn the_file_is_found_and_secrets_join_the_variables() {
    let dir = tempfile::tempdir().expect("a directory");
    let none = load(dir.path(), None, Purpose::Dev).expect_err("no file").to_string();
    assert!(none.contains("no wrangler file here"), "{none}");
    std::fs::write(dir.path().join("wrangler.jsonc"), PLAIN).expect("write");
    std::fs::write(dir.path().join("wrangler.toml"), "").expect("write");
    std::fs::write(dir.path().join(".dev.vars"), "GREETING=secret\n").expect("write");
    let project = load(dir.path(), None, Purpose::Dev).expect("good");
    assert_eq!((project.vars["GREETING"].as_str(), project.files.len()), (Some("secret"), 2));
    assert!(project.notes[0].contains("wrangler.toml is not"), "{:?}", project.notes);
    assert_eq!(load(dir.path(), None, Purpose::Deploy).expect("good").vars["GREETING"], "hi");
    std::fs::write(dir.path().join("wrangler.jsonc"), "{\n  \"nam\": 1\n}").expect("write");
    let text = load(dir.path(), None, Purpose::Dev).expect_err("faults").to_string();
    assert!(text.contains("wrangler.jsonc:2:3: the key \"nam\""), "{text}");
}
