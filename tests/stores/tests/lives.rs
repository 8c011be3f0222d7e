//! Stores start, are apart from each other, and end with the program that started them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use celld_stores::{BUCKET, Faulty, Kind, Outage, Store, ask, busiest_second};
use serde_json::json;

/// Tells the copy of this program how to end.
const COPY: &str = "CELLD_STORES_TEST_COPY";

fn object(name: &str) -> String {
    format!("/{BUCKET}/{name}")
}

#[test]
fn each_store_that_is_installed_starts_and_answers() {
    for kind in Kind::ALL {
        let Some(store) = Store::shared(kind) else { continue };
        assert!(std::ptr::eq(store, Store::shared(kind).expect("the same")));
        let answer = ask(store.port(), "GET", &object("none"), &[], "").expect("an answer");
        assert!((400..500).contains(&answer.status), "{kind:?}: {answer:?}");
    }
}

#[test]
fn a_signature_of_ours_is_taken_by_a_store_that_verifies_them() {
    let Some(store) = Store::shared(Kind::Seaweed) else { return };
    let signed = store.signed("PUT", "signed/a-b_c.d");
    let mut headers: Vec<_> = signed.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for body in ["one", "another"] {
        let answer = ask(store.port(), "PUT", &object("signed/a-b_c.d"), &headers, body);
        assert_eq!(answer.expect("an answer").status, 200, "{body}");
    }
    let answer = ask(store.port(), "PUT", &object("signed/other"), &headers, "x");
    assert_eq!(answer.expect("an answer").status, 403, "of another object");
    headers.pop();
    let answer = ask(store.port(), "PUT", &object("signed/a-b_c.d"), &headers, "x");
    assert_eq!(answer.expect("an answer").status, 403, "none at all");
}

#[test]
fn two_stores_of_one_kind_run_side_by_side() {
    let Some(one) = Store::shared(Kind::Seaweed) else { return };
    let mut two = Store::start(Kind::Seaweed).expect("another one");
    assert_ne!(one.port(), two.port());
    two.process_mut().end().expect("its end");
    assert!(ask(two.port(), "GET", "/", &[], "").is_err());
    assert_eq!(ask(one.port(), "GET", "/", &[], "").expect("an answer").status, 403);
}

#[test]
fn a_program_that_does_not_start_says_why() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo no such volume; exit 3"]);
    let dir = celld_stores::Process::directory().expect("a directory");
    let mut process = celld_stores::Process::start("sh", command, dir).expect("it starts");
    let why = process.wait_until(Duration::from_secs(20), |_| None::<()>).expect_err("it ended");
    let why = format!("{why:#}");
    assert!(why.contains("exit status: 3") && why.contains("no such volume"), "{why}");
}

/// Not a test: the copy that [`copy`] starts.
#[test]
fn the_copy_of_this_program() {
    let Some(ending) = std::env::var_os(COPY) else { return };
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    println!("store {} {}", store.process().pid(), store.process().path().display());
    if ending == "killed" {
        std::thread::sleep(Duration::from_secs(600));
    }
    assert!(ending != "panicked", "as it was told");
}

/// This program once more, with a store in it: its process and the store's.
fn copy(ending: &str) -> Option<(Child, String, String)> {
    Store::shared(Kind::Ministack)?;
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_copy_of_this_program", "--nocapture"])
        .env(COPY, ending)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("store "));
    let line = line.expect("the store's process");
    let (_, rest) = line.split_once("store ").expect("as found");
    let (pid, dir) = rest.split_once(' ').expect("a process and a directory");
    Some((child, pid.to_owned(), dir.to_owned()))
}

#[test]
fn a_store_ends_with_the_program_that_started_it() {
    for ending in ["returned", "panicked", "killed"] {
        let Some((mut child, pid, dir)) = copy(ending) else { return };
        if ending == "killed" {
            child.kill().expect("it is our child");
        }
        child.wait().expect("it is our child");
        let begin = Instant::now();
        while Path::new("/proc").join(&pid).join("exe").exists() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{ending}: {pid} lives");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Of a program that is killed nobody is left to clear up.
        assert!(ending == "killed" || !Path::new(&dir).exists(), "{ending}: {dir} is left");
        let _cleared = std::fs::remove_dir_all(dir);
    }
}

#[test]
fn the_proxy_injects_what_it_is_told_and_logs_what_it_sees() {
    let Some(store) = Store::shared(Kind::Ministack) else { return };
    let Some(proxy) = Faulty::before(store) else { return };
    let port: u16 = proxy.endpoint().rsplit_once(':').expect("a port").1.parse().expect("a port");
    let put = |name: &str| ask(port, "PUT", &object(name), &[("If-None-Match", "*")], "x");
    assert_eq!(put("proxied").expect("an answer").status, 200);
    assert_eq!(put("proxied").expect("an answer").status, 412);
    proxy.set(json!({"ignore_conditions": "all"}));
    assert_eq!(put("proxied").expect("an answer").status, 200);
    proxy.heal();
    assert_eq!(put("proxied").expect("an answer").status, 412);
    proxy.set(json!({"lose_response": 1.0, "count": 1}));
    assert!(put("lost").is_err());
    assert_eq!(put("lost").expect("an answer").status, 412, "it was applied");
    proxy.outage(Duration::from_secs(600), Outage::Unavailable);
    assert_eq!(put("away").expect("an answer").status, 503);
    let seen = proxy.requests();
    assert_eq!(seen.len(), 7);
    assert!(seen.iter().all(|request| request.method == "PUT"));
    assert_eq!((seen[0].path.as_str(), seen[0].status), (object("proxied").as_str(), 200));
    assert_eq!((proxy.met("lose-response"), proxy.met("outage")), (1, 1));
    assert!((1..=7).contains(&busiest_second(&seen)));
}
