//! The engine with scripts that need no Workers API: loading, modules, errors, limits.

use std::sync::Arc;
use std::time::Duration;

use celld_v8host::{Limits, LoadError, Module, ModuleKind, Realm, Script};

fn script(modules: &[(&str, &str)]) -> Arc<Script> {
    let kind = |name: &str| match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("json") => ModuleKind::Json,
        Some("txt") => ModuleKind::Text,
        Some("bin") => ModuleKind::Data,
        _ => ModuleKind::EsModule,
    };
    Arc::new(Script {
        name: "test".to_owned(),
        modules: modules
            .iter()
            .map(|(name, text)| Module::new(*name, kind(name), text.to_string()))
            .collect(),
        main: modules[0].0.to_owned(),
        ..Script::default()
    })
}

fn load(modules: &[(&str, &str)]) -> Result<Realm, LoadError> {
    Realm::new(&script(modules), Limits::default())
}

fn error(modules: &[(&str, &str)]) -> String {
    match load(modules) {
        Ok(_) => panic!("the script loads"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_script_is_loaded_and_its_exports_are_known() {
    let mut realm = load(&[(
        "index.js",
        "export class Counter {}; export default {}; export function f() {}; export const n = 1;",
    )])
    .expect("it loads");
    assert_eq!(realm.exports(), ["Counter", "f"]);
}

#[test]
fn modules_of_every_kind_import_each_other() {
    load(&[
        (
            "src/index.js",
            "import { two } from './lib/two.js'; import text from '../a.txt'; import json from './b.json'; import data from 'c.bin';
             if (two !== 2) throw new Error('two'); if (text !== 'text ü') throw new Error(text);
             if (json.a[0] !== 1) throw new Error('json'); if (data.byteLength !== 3) throw new Error('data');
             export default {};",
        ),
        ("src/lib/two.js", "import { one } from '../one.js'; export const two = one + 1;"),
        ("src/one.js", "export const one = 1;"),
        ("a.txt", "text ü"),
        ("src/b.json", "{\"a\": [1]}"),
        ("c.bin", "abc"),
    ])
    .map(drop)
    .expect("it loads");
}

#[test]
fn an_unknown_import_names_specifier_and_importer() {
    let text = error(&[("src/index.js", "import './no.js';")]);
    assert!(
        text.contains("No such module \"src/no.js\"")
            && text.contains("imported from \"src/index.js\""),
        "{text}"
    );
}

#[test]
fn exceptions_and_syntax_errors_of_a_module_are_load_errors_with_a_place() {
    let text = error(&[("index.js", "\nnull.x;")]);
    assert!(text.contains("TypeError") && text.contains("index.js:2:6"), "{text}");
    let text = error(&[("index.js", "\n  let a = ;")]);
    assert!(text.contains("SyntaxError") && text.contains("index.js:2:11"), "{text}");
    let text = error(&[("index.js", "throw 'a text'")]);
    assert!(text.contains("a text"), "{text}");
    let text = error(&[("index.js", "throw { get message() { throw 1 } }")]);
    assert!(!text.is_empty());
}

#[test]
fn stacks_show_places_in_the_source_that_was_bundled() {
    let mut map = sourcemap::SourceMapBuilder::new(None);
    // Second line of the bundle, from its first column: line 41, column 3 of the source.
    map.add(1, 0, 40, 2, Some("src/main.ts"), None, false);
    let mut json = Vec::new();
    map.into_sourcemap().to_writer(&mut json).expect("JSON");
    let made = |module: Module| {
        let script =
            Script { modules: vec![module], main: "index.js".to_owned(), ..Script::default() };
        Realm::new(&Arc::new(script), Limits::default()).map(drop).expect_err("it throws")
    };
    let module = || Module::new("index.js", ModuleKind::EsModule, "export default {};\nnull.x;");
    let text = made(module().with_source_map(json.clone())).to_string();
    assert!(text.contains("src/main.ts:41:3") && !text.contains("index.js"), "{text}");
    // Code of the script reads the same, and makes stacks of its own as with V8 alone.
    let seen = |source: &str| {
        let module = Module::new("index.js", ModuleKind::EsModule, source.to_owned());
        made(module.with_source_map(json.clone())).to_string()
    };
    let text = seen("export default {};\ntry { null.x } catch (e) { throw 'seen ' + e.stack }");
    assert!(text.contains("seen TypeError: Cannot read properties of null"), "{text}");
    assert!(text.contains("    at src/main.ts:41:3") && !text.contains("index.js"), "{text}");
    let hook = "Error.prepareStackTrace = (e, sites) => `${e.message} by ${sites.length}`;";
    let text = seen(&format!("{hook}\nthrow 'made: ' + new Error('x').stack"));
    assert!(text.contains("made: x by 1"), "{text}");
    let hook = "Error.prepareStackTrace = () => { throw 1 };";
    let text = seen(&format!("{hook}\nthrow 'made: ' + new Error('x').stack"));
    assert!(text.contains("made: Error: x\n    at src/main.ts:41:3"), "{text}");
    // A map that makes no sense hides nothing.
    let text = made(module().with_source_map("{ no map")).to_string();
    assert!(text.contains("TypeError") && text.contains("index.js:2:6"), "{text}");
}

#[test]
fn a_top_level_await_that_settles_is_awaited_and_one_that_does_not_is_an_error() {
    load(&[("index.js", "export const x = await Promise.resolve(1); export default {}")])
        .map(drop)
        .expect("it loads");
    let text = error(&[("index.js", "\nawait new Promise(() => {});")]);
    assert!(text.contains("index.js:2"), "{text}");
}

#[test]
fn code_from_strings_is_refused() {
    assert!(error(&[("index.js", "eval('1')")]).contains("EvalError"));
    assert!(error(&[("index.js", "new Function('return 1')")]).contains("EvalError"));
    let text = error(&[(
        "index.js",
        "new WebAssembly.Module(new Uint8Array([0,0x61,0x73,0x6d,1,0,0,0]))",
    )]);
    assert!(text.contains("Wasm code generation disallowed by embedder"), "{text}");
}

#[test]
fn start_up_ends_at_its_cpu_limit() {
    let limits = Limits { startup_cpu_max: Duration::from_millis(50), ..Limits::default() };
    let result = Realm::new(&script(&[("index.js", "for (;;);")]), limits);
    assert!(matches!(result, Err(LoadError::CpuTimeExceeded)));
}

#[test]
fn many_realms_share_a_thread_and_the_code_cache() {
    let script = script(&[("index.js", "export default { x: 1 }")]);
    let realms: Vec<Realm> =
        (0..5).map(|_| Realm::new(&script, Limits::default()).expect("it loads")).collect();
    let mut order: Vec<Option<Realm>> = realms.into_iter().map(Some).collect();
    for index in [2, 0, 4, 1, 3] {
        order[index] = None;
    }
}
