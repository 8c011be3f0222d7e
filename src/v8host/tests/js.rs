//! Conformance tests in JavaScript: every `tests/js/*.js` is a Worker whose tests run in a realm.
//!
//! `cargo test -p celld-v8host --test js -- headers` runs the files and tests whose
//! `file: name` contains one of the arguments. A file may set the Worker up in its first comments:
//!
//! ```text
//! // vars: {"TEXT": "a", "JSON": {"b": 1}}
//! // durable object: COUNTER=Counter
//! // compatibility date: 2026-01-01
//! // compatibility flags: a, b
//! ```

mod host;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use celld_v8host::{DurableObjectBinding, Limits, Module, ModuleKind, Realm, Script};
use host::Host;

fn main() -> ExitCode {
    let filters: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/js");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("tests/js is there")
        .map(|entry| entry.expect("its entries are readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "js"))
        .collect();
    files.sort();
    let (mut passed, mut failed) = (0, 0);
    for path in files {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).expect("it is text");
        match run_file(&name, &source, &filters) {
            Ok(results) => {
                for (test, error) in results {
                    match error {
                        None => passed += 1,
                        Some(error) => {
                            failed += 1;
                            println!("FAILED {name}: {test}\n{error}\n");
                        }
                    }
                }
            }
            Err(error) => {
                failed += 1;
                println!("FAILED {name}: {error}\n");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Results = Vec<(String, Option<String>)>;

fn run_file(file: &str, source: &str, filters: &[String]) -> Result<Results, String> {
    let realm = Realm::new(&Arc::new(script(file, source)?), Limits::default())
        .map_err(|error| error.to_string())?;
    let mut host = Host::new(realm);
    let (_, list) = host.get("http://test/list").map_err(|failure| failure.to_string())?;
    let names: Vec<String> = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
    let mut results = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let title = format!("{file}: {name}");
        if !filters.is_empty() && !filters.iter().any(|filter| title.contains(filter.as_str())) {
            continue;
        }
        results.push((name, run_test(&mut host, index)));
    }
    Ok(results)
}

/// What went wrong, if anything.
fn run_test(host: &mut Host, index: usize) -> Option<String> {
    host.logs.clear();
    let result = host.get(&format!("http://test/run/{index}"));
    host.run_idle();
    let mut error = match result {
        Ok((response, _)) if response.status == 200 => String::new(),
        Ok((_, body)) => String::from_utf8_lossy(&body).into_owned(),
        Err(failure) => failure.to_string(),
    };
    for failure in host.uncaught.drain(..) {
        error.push_str(&format!("\nuncaught {failure}"));
    }
    if error.is_empty() {
        return None;
    }
    for (level, text) in &host.logs {
        error.push_str(&format!("\n{level:?}: {text}"));
    }
    Some(error)
}

fn script(file: &str, source: &str) -> Result<Script, String> {
    let name = format!("{file}.js");
    let main = format!(
        "import {{ run }} from 'test';\nimport * as file from '{name}';\nexport * from '{name}';\n\
         export default {{\n  ...file.default,\n  fetch(request, env, ctx) {{\n    \
         return request.url.startsWith('http://test/') ? run(request, env, ctx) : file.default.fetch(request, env, ctx);\n  \
         }},\n}};\n"
    );
    let mut script = Script {
        name: file.to_owned(),
        modules: vec![
            Module::new("main", ModuleKind::EsModule, main),
            Module::new(name, ModuleKind::EsModule, source.to_owned()),
            Module::new("test", ModuleKind::EsModule, include_str!("host/test.js")),
        ],
        main: "main".to_owned(),
        compatibility_date: "2026-11-01".to_owned(),
        ..Script::default()
    };
    for line in source.lines().map_while(|line| line.strip_prefix("//")) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        match key.trim() {
            "vars" => {
                script.vars = serde_json::from_str(value).map_err(|error| error.to_string())?
            }
            "durable object" => {
                let (name, class) = value.split_once('=').ok_or("durable object: NAME=Class")?;
                let (name, class) = (name.trim().to_owned(), class.trim().to_owned());
                script.durable_objects.push(DurableObjectBinding {
                    name,
                    namespace: format!("ns-{class}"),
                    class,
                });
            }
            "compatibility date" => script.compatibility_date = value.trim().to_owned(),
            "compatibility flags" => {
                script.compatibility_flags =
                    value.split(',').map(|flag| flag.trim().to_owned()).collect()
            }
            _ => {}
        }
    }
    Ok(script)
}
