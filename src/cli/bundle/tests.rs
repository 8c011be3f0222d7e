//! What becomes of projects on disk, with and without a bundler.

use super::*;
use crate::cli::config;

/// A project with these files; `extra` goes into its wrangler file.
fn project(extra: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Project) {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("make");
        std::fs::write(path, text).expect("write");
    }
    let main = files[0].0;
    let text = format!(
        "{{ \"name\": \"app\", \"main\": {main:?}, \"compatibility_date\": \"2026-01-31\" {extra} }}"
    );
    std::fs::write(dir.path().join("wrangler.jsonc"), text).expect("write");
    let project = config::load(dir.path(), None, Purpose::Deploy).expect("good");
    (dir, project)
}

fn plain(extra: &str, files: &[(&str, &str)]) -> Result<Bundle, String> {
    let (_dir, project) = project(extra, files);
    let rules = Rules::new(&project.rules).expect("good");
    match plain::collect(&project, &rules) {
        Ok(Collected::Whole(mut bundle)) => {
            if project.find_additional_modules {
                additional::add(&project, &rules, &mut bundle)
                    .map_err(|error| error.to_string())?;
            }
            Ok(bundle)
        }
        Ok(Collected::NeedsBundler(why)) => Err(format!("needs esbuild: {why}")),
        Err(error) => Err(error.to_string()),
    }
}

fn kinds(bundle: &Bundle) -> Vec<(&str, ModuleKind)> {
    bundle.modules.iter().map(|module| (module.name.as_str(), module.kind)).collect()
}

#[test]
fn plain_modules_are_collected_with_what_they_import() {
    let bundle = plain(
        "",
        &[
            ("src/index.js", "import './lib/a.js'; import t from '../page.html'; import 'node:fs'; import 'cloudflare:workers'"),
            ("src/lib/a.js", "import '../index.js'; import d from './d.json' with { type: 'json' }; await import('./w.wasm?module')"),
            ("src/lib/d.json", "{}"),
            ("src/lib/w.wasm", "\0asm"),
            ("page.html", "<p>"),
            ("src/unused.js", ""),
        ],
    )
    .expect("good");
    let expected = [
        ("page.html", ModuleKind::Text),
        ("src/index.js", ModuleKind::EsModule),
        ("src/lib/a.js", ModuleKind::EsModule),
        ("src/lib/d.json", ModuleKind::Json),
        ("src/lib/w.wasm?module", ModuleKind::Wasm),
    ];
    assert_eq!((bundle.main.as_str(), kinds(&bundle)), ("src/index.js", expected.to_vec()));
}

#[test]
fn what_is_not_plain_goes_to_the_bundler() {
    for (files, why) in [
        (&[("a.ts", "")] as &[(&str, &str)], "a.ts is not plain JavaScript"),
        (&[("a.js", "import 'hono'")], "a.js:1: \"hono\" is a package"),
        (&[("a.js", "\nimport './b'"), ("b.ts", "")], "a.js:2: \"b\" means \"b.ts\""),
        (&[("a.js", "import './b.js'"), ("b.ts", "")], "means \"b.ts\""),
        (&[("a.js", "import './b'"), ("b/index.js", "")], "is a directory"),
        (&[("a.js", "import './b.cjs'"), ("b.cjs", "")], "b.cjs is not plain JavaScript"),
    ] {
        let text = plain("", files).expect_err(why);
        assert!(text.starts_with("needs esbuild: ") && text.contains(why), "{text}");
    }
    let text = plain(", \"define\": { \"A\": \"1\" }", &[("a.js", "")]).expect_err("define");
    assert!(text.contains("`define`"), "{text}");
}

#[test]
fn faults_name_the_module_and_the_line() {
    for (source, text) in [
        ("\n\nimport './missing.js'", "a.js:3: imports \"./missing.js\", which does not exist"),
        ("import '../../outside.js'", "a.js:1: \"../../outside.js\" leads out of the project"),
        ("import '/etc/hostname'", "a.js:1: \"/etc/hostname\" leads out of the project"),
        (
            "import 'https://example.com/x.js'",
            "cannot be imported: modules cannot be loaded from a URL",
        ),
        ("import './style.css'", "style.css: no rule says"),
    ] {
        let found = plain("", &[("a.js", source), ("style.css", "")]).expect_err(text);
        assert!(found.contains(text), "{found}");
    }
    let found = plain(", \"no_bundle\": true", &[("a.js", "import 'hono'")]).expect_err("package");
    assert!(found.contains("\"hono\" is a package, and \"no_bundle\""), "{found}");
}

#[test]
fn a_symbolic_link_does_not_lead_out_of_the_project() {
    let outside = tempfile::tempdir().expect("a directory");
    std::fs::write(outside.path().join("secret.txt"), "secret").expect("write");
    let (dir, project) = project("", &[("a.js", "import './link.txt'")]);
    std::os::unix::fs::symlink(outside.path().join("secret.txt"), dir.path().join("link.txt"))
        .expect("link");
    let rules = Rules::new(&project.rules).expect("good");
    let error = plain::collect(&project, &rules).expect_err("outside").to_string();
    assert!(error.contains("leads out of the project"), "{error}");
}

#[test]
fn additional_modules_are_those_that_a_rule_knows() {
    let files: &[(&str, &str)] = &[
        ("src/index.js", "export default {}"),
        ("src/lang/en.js", "export default 1"),
        ("src/page.html", ""),
        ("src/notes.md", ""),
        ("src/node_modules/x/index.js", ""),
        ("src/.hidden/y.js", ""),
        ("other/z.js", ""),
    ];
    let bundle = plain(", \"find_additional_modules\": true", files).expect("good");
    let expected = [
        ("src/index.js", ModuleKind::EsModule),
        ("src/lang/en.js", ModuleKind::EsModule),
        ("src/page.html", ModuleKind::Text),
    ];
    assert_eq!(kinds(&bundle), expected);
    let bundle = plain(", \"no_bundle\": true, \"base_dir\": \"src\"", files).expect("good");
    assert_eq!((bundle.main.as_str(), bundle.modules.len()), ("index.js", 3));
    assert_eq!(bundle.modules[1].name, "lang/en.js");
}

#[test]
fn the_examples_are_plain_projects() {
    for (name, modules) in [("hello", 1), ("counter", 1), ("guestbook", 3)] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        let project = config::load(&dir, None, Purpose::Deploy).expect(name);
        let bundle = build(&project, Purpose::Deploy).expect(name);
        assert_eq!((bundle.modules.len(), bundle.bundler), (modules, None), "{name}");
        assert!(project.notes.is_empty() && bundle.notes.is_empty(), "{name}");
    }
}

/// Writes a program to run at once. Another process writes it: while this one has it open, a
/// child that another test starts in the same instant may inherit the descriptor, and the system
/// runs no file that anybody has open for writing.
fn write_program(path: &Path, script: &str) {
    let mut writer = std::process::Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    std::io::Write::write_all(&mut writer.stdin.take().expect("a pipe"), script.as_bytes())
        .expect("written");
    assert!(writer.wait().expect("an end").success());
}

/// A project whose esbuild is this script.
fn with_bundler(script: &str) -> Result<Bundle, String> {
    let (dir, project) = project("", &[("src/index.ts", ""), ("src/m.wasm", "")]);
    let path = dir.path().join("node_modules/.bin/esbuild");
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("make");
    write_program(&path, script);
    build(&project, Purpose::Deploy).map_err(|error| error.to_string())
}

#[test]
fn what_the_bundler_wrote_becomes_modules() {
    let script = r#"#!/bin/sh
for word; do
  case $word in --outdir=*) out=${word#--outdir=} ;; ./src/index.ts) entry=yes ;; --loader:.wasm=copy) copy=yes ;; esac
done
[ "$entry$copy" = yesyes ] || exit 9
echo 'import m from "./m-X.wasm?module"; import t from "./t-X.txt"; export default {}' >"$out/index.js"
echo map >"$out/index.js.map"
echo w >"$out/m-X.wasm"
echo t >"$out/t-X.txt"
echo c >"$out/index.css"
echo '{"inputs":{"src/index.ts":{"bytes":1},"src/m.wasm?module":{}}}' >"$out/report.json"
"#;
    let bundle = with_bundler(script).expect("good");
    let expected = [
        ("index.js", ModuleKind::EsModule),
        ("m-X.wasm?module", ModuleKind::Wasm),
        ("t-X.txt", ModuleKind::Text),
    ];
    assert_eq!(kinds(&bundle), expected);
    assert_eq!(bundle.modules[0].source_map.as_deref(), Some(b"map\n" as &[u8]));
    assert!(
        bundle.bundler.is_some() && bundle.inputs.iter().any(|input| input.ends_with("src/m.wasm")),
        "{:?}",
        bundle.inputs
    );
}

#[test]
fn what_the_bundler_complains_about_is_passed_on() {
    let text =
        with_bundler("#!/bin/sh\necho 'src/index.ts:1:7: ERROR: Unexpected end' >&2\nexit 1\n")
            .expect_err("failed");
    assert_eq!(text, "the build failed:\nsrc/index.ts:1:7: ERROR: Unexpected end");
    let text = with_bundler("#!/bin/sh\nexit 3\n").expect_err("failed");
    assert!(text.contains("ended with exit status: 3"), "{text}");
}
