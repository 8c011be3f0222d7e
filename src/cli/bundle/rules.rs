//! Which files are modules, and of which type: the project's `rules` before the defaults.
//!
//! Source: wrangler 4. A rule without `fallthrough` ends the rules of its type, so that a project
//! replaces the defaults of a type by giving its own.

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::BundleError;
use crate::cli::config::{ModuleType, Rule};

/// Wrangler's own rules, last in the list.
const DEFAULTS: [(ModuleType, &[&str]); 4] = [
    (ModuleType::EsModule, &["**/*.js", "**/*.mjs"]),
    (ModuleType::Text, &["**/*.txt", "**/*.html", "**/*.sql"]),
    (ModuleType::Data, &["**/*.bin"]),
    (ModuleType::CompiledWasm, &["**/*.wasm"]),
];

/// The rules that count, in order.
#[derive(Debug)]
pub(crate) struct Rules {
    entries: Vec<(ModuleType, Vec<String>, GlobSet)>,
    /// Rules of the project that never count, for a note.
    pub(crate) shadowed: Vec<String>,
    /// All rules that never count, the defaults too, for a message.
    ended: Vec<(ModuleType, Vec<String>, GlobSet)>,
}

impl Rules {
    /// Puts the project's rules before the defaults.
    ///
    /// # Errors
    /// A glob that cannot be read.
    pub(crate) fn new(own: &[Rule]) -> Result<Self, globset::Error> {
        let defaults = DEFAULTS.iter().map(|&(kind, globs)| Rule {
            kind,
            globs: globs.iter().map(|&glob| glob.to_owned()).collect(),
            fallthrough: false,
        });
        let mut ended: Vec<ModuleType> = Vec::new();
        let mut rules = Self { entries: Vec::new(), shadowed: Vec::new(), ended: Vec::new() };
        for (at, rule) in own.iter().cloned().chain(defaults).enumerate() {
            let mut set = GlobSetBuilder::new();
            for glob in &rule.globs {
                set.add(Glob::new(glob)?);
            }
            let set = set.build()?;
            if ended.contains(&rule.kind) {
                if at < own.len() {
                    rules.shadowed.push(rule.globs.join(", "));
                }
                rules.ended.push((rule.kind, rule.globs, set));
                continue;
            }
            if !rule.fallthrough {
                ended.push(rule.kind);
            }
            rules.entries.push((rule.kind, rule.globs, set));
        }
        Ok(rules)
    }

    /// The type of the file with that name, relative to the root of the modules. A query like
    /// `?module` is not part of it.
    pub(crate) fn kind(&self, name: &str) -> Option<ModuleType> {
        let name = name.split('?').next().unwrap_or(name);
        self.entries.iter().find(|(_, _, set)| set.is_match(name)).map(|&(kind, _, _)| kind)
    }

    /// Why no rule counts for the file with that name.
    pub(crate) fn no_rule(&self, name: &str) -> BundleError {
        match self.ended.iter().find(|(_, _, set)| set.is_match(name)) {
            Some((kind, globs, _)) => BundleError::Shadowed {
                name: name.to_owned(),
                rule: globs.join(", "),
                kind: kind.name(),
            },
            None => BundleError::NoRule(name.to_owned()),
        }
    }

    /// The file endings that a bundler must leave as modules of their own, with the dot. `Err` with
    /// a glob that is more than an ending: a bundler that is told endings cannot follow it.
    pub(crate) fn copied_endings(&self) -> Result<Vec<String>, String> {
        let mut endings = Vec::new();
        for (kind, globs, _) in &self.entries {
            if matches!(kind, ModuleType::EsModule | ModuleType::CommonJs) {
                continue;
            }
            for glob in globs {
                let bare = glob.strip_suffix("?module").unwrap_or(glob);
                let ending = bare
                    .strip_prefix("**/*")
                    .or_else(|| bare.strip_prefix('*'))
                    .filter(|ending| is_ending(ending));
                match ending {
                    Some(ending) if !endings.iter().any(|other| other == ending) => {
                        endings.push(ending.to_owned())
                    }
                    Some(_) => {}
                    None => return Err(glob.clone()),
                }
            }
        }
        Ok(endings)
    }
}

/// A dot and a plain rest.
fn is_ending(text: &str) -> bool {
    text.strip_prefix('.').is_some_and(|rest| {
        !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(kind: ModuleType, glob: &str, fallthrough: bool) -> Rule {
        Rule { kind, globs: vec![glob.to_owned()], fallthrough }
    }

    #[test]
    fn the_defaults_are_those_of_wrangler() {
        let rules = Rules::new(&[]).expect("good");
        for (name, kind) in [
            ("index.js", Some(ModuleType::EsModule)),
            ("a/b/c.mjs", Some(ModuleType::EsModule)),
            ("page.html", Some(ModuleType::Text)),
            ("schema.sql", Some(ModuleType::Text)),
            ("a.bin", Some(ModuleType::Data)),
            ("m.wasm", Some(ModuleType::CompiledWasm)),
            ("m.wasm?module", Some(ModuleType::CompiledWasm)),
            ("a.css", None),
        ] {
            assert_eq!(rules.kind(name), kind, "{name}");
        }
        assert_eq!(
            rules.copied_endings(),
            Ok([".txt", ".html", ".sql", ".bin", ".wasm"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn a_rule_without_fallthrough_ends_its_type() {
        let rules = Rules::new(&[
            rule(ModuleType::Text, "**/*.md", false),
            rule(ModuleType::Text, "**/*.css", false),
        ])
        .expect("good");
        assert_eq!(
            (rules.kind("a.md"), rules.kind("a.txt"), rules.kind("a.css")),
            (Some(ModuleType::Text), None, None)
        );
        assert_eq!(rules.shadowed, ["**/*.css"]);
        let why = |name: &str| rules.no_rule(name).to_string();
        assert!(
            why("a.txt").contains("**/*.txt, **/*.html, **/*.sql")
                && why("a.txt").contains("(Text)")
        );
        assert!(why("a.css").contains("fallthrough") && why("a.odd").contains("no rule says"));
        let rules = Rules::new(&[rule(ModuleType::Text, "**/*.md", true)]).expect("good");
        assert_eq!(
            (rules.kind("a.md"), rules.kind("a.txt")),
            (Some(ModuleType::Text), Some(ModuleType::Text))
        );
    }

    #[test]
    fn a_glob_that_is_more_than_an_ending_is_reported() {
        let rules = Rules::new(&[rule(ModuleType::Data, "data/*.dat", true)]).expect("good");
        assert_eq!(rules.copied_endings(), Err("data/*.dat".to_owned()));
    }
}
