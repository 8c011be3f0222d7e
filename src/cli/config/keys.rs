//! Each key of a wrangler file that is known, and what it means here.
//!
//! Source: the configuration reference of wrangler 4. A key that is missing here stops the start.

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Read by `read`.
    Used,
    /// Accepted without a word: it is for editors.
    Silent,
    /// Accepted with one note: it is for Cloudflare's network, and a server loses nothing by it.
    NoEffect(&'static str),
    /// Would be missed by the application: it stops the start when it names anything.
    Missing(Shape),
    /// No longer a key of wrangler either; what to write instead.
    Removed(&'static str),
}

/// What a binding that is not served looks like, so that a message can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// One of them, as a message calls it.
    pub(crate) what: &'static str,
    pub(crate) form: Form,
    /// Keys of one entry, the name in the program first; empty: not looked into.
    pub(crate) keys: &'static [&'static str],
}

/// How entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `[{…}, …]`
    List,
    /// `{…}`: the whole table is one entry.
    One,
    /// `{ "producers": […], "consumers": […] }`
    Queues,
    /// Anything.
    Any,
}

/// Which levels of a file a key may stand on, and whether `env.<name>` inherits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Top level and environments; an environment that does not give it takes the top level's.
    Inherited,
    /// Top level and environments; each environment gives its own.
    Own,
    /// Top level only.
    Top,
}

const fn list(what: &'static str, keys: &'static [&'static str]) -> Meaning {
    Meaning::Missing(Shape { what, form: Form::List, keys })
}

const fn one(what: &'static str, keys: &'static [&'static str]) -> Meaning {
    Meaning::Missing(Shape { what, form: Form::One, keys })
}

const fn any(what: &'static str) -> Meaning {
    Meaning::Missing(Shape { what, form: Form::Any, keys: &[] })
}

const NETWORK: &str = "it configures Cloudflare's network";
const LOGS: &str = "logs go to this process's own output";
const TOOLS: &str = "it configures wrangler itself";

/// All of them.
pub(crate) const KEYS: &[(&str, Level, Meaning)] = {
    use Level::{Inherited, Own, Top};
    use Meaning::{NoEffect, Removed, Silent, Used};
    &[
        ("$schema", Top, Silent),
        ("name", Inherited, Used),
        ("main", Inherited, Used),
        ("compatibility_date", Inherited, Used),
        ("compatibility_flags", Inherited, Used),
        ("vars", Own, Used),
        ("durable_objects", Own, Used),
        ("migrations", Inherited, Used),
        ("rules", Inherited, Used),
        ("define", Own, Used),
        ("alias", Inherited, Used),
        ("triggers", Inherited, Used),
        ("limits", Inherited, Used),
        ("no_bundle", Inherited, Used),
        ("base_dir", Inherited, Used),
        ("find_additional_modules", Inherited, Used),
        ("minify", Inherited, Used),
        ("keep_names", Inherited, Used),
        ("tsconfig", Inherited, Used),
        ("jsx_factory", Inherited, Used),
        ("jsx_fragment", Inherited, Used),
        ("env", Top, Used),
        ("account_id", Inherited, NoEffect(NETWORK)),
        (
            "build",
            Inherited,
            NoEffect("custom builds are not run; run the command before this one"),
        ),
        ("cache", Inherited, NoEffect(NETWORK)),
        ("compliance_region", Inherited, NoEffect(NETWORK)),
        ("dev", Top, NoEffect("use --port and --host")),
        ("first_party_worker", Inherited, NoEffect(NETWORK)),
        ("keep_vars", Top, NoEffect("a deployment always carries its own variables")),
        ("legacy_env", Top, NoEffect(TOOLS)),
        ("logpush", Inherited, NoEffect(LOGS)),
        ("observability", Inherited, NoEffect(LOGS)),
        ("placement", Inherited, NoEffect(NETWORK)),
        ("preserve_file_names", Inherited, NoEffect("module names are always kept")),
        ("preview_urls", Inherited, NoEffect(NETWORK)),
        ("route", Inherited, NoEffect(NETWORK)),
        ("routes", Inherited, NoEffect(NETWORK)),
        ("send_metrics", Top, NoEffect(TOOLS)),
        ("upload_source_maps", Inherited, NoEffect("source maps always go with the modules")),
        ("workers_dev", Inherited, NoEffect(NETWORK)),
        ("zone_id", Inherited, NoEffect(NETWORK)),
        ("kv_namespaces", Own, list("KV namespace", &["binding", "id", "preview_id", "remote"])),
        (
            "r2_buckets",
            Own,
            list(
                "R2 bucket",
                &["binding", "bucket_name", "preview_bucket_name", "jurisdiction", "remote"],
            ),
        ),
        (
            "d1_databases",
            Own,
            list(
                "D1 database",
                &[
                    "binding",
                    "database_name",
                    "database_id",
                    "preview_database_id",
                    "migrations_dir",
                    "migrations_table",
                    "remote",
                ],
            ),
        ),
        ("queues", Own, Meaning::Missing(Shape { what: "queue", form: Form::Queues, keys: &[] })),
        (
            "workflows",
            Own,
            list(
                "workflow",
                &["binding", "name", "class_name", "script_name", "schedules", "limits", "remote"],
            ),
        ),
        (
            "services",
            Own,
            list(
                "service",
                &["binding", "service", "environment", "entrypoint", "props", "remote"],
            ),
        ),
        (
            "assets",
            Inherited,
            one(
                "folder of static assets",
                &[
                    "binding",
                    "directory",
                    "html_handling",
                    "not_found_handling",
                    "run_worker_first",
                ],
            ),
        ),
        ("ai", Own, any("AI binding")),
        ("analytics_engine_datasets", Own, any("analytics dataset")),
        ("browser", Own, any("browser binding")),
        ("cloudchamber", Own, any("container")),
        ("containers", Inherited, any("container")),
        ("data_blobs", Top, any("data blob")),
        ("dispatch_namespaces", Own, any("dispatch namespace")),
        ("exports", Inherited, any("declared export")),
        ("hyperdrive", Own, any("Hyperdrive binding")),
        ("images", Own, any("Images binding")),
        ("logfwdr", Own, any("log forwarder")),
        ("media", Own, any("Media binding")),
        ("mtls_certificates", Own, any("mTLS certificate")),
        ("pages_build_output_dir", Top, any("Pages project")),
        ("pipelines", Own, any("pipeline")),
        ("python_modules", Inherited, any("Python module")),
        ("ratelimits", Own, any("rate limit")),
        ("secrets_store_secrets", Own, any("Secrets Store secret")),
        ("send_email", Own, any("e-mail binding")),
        ("site", Top, any("Workers Site")),
        ("streaming_tail_consumers", Own, any("tail consumer")),
        ("tail_consumers", Own, any("tail consumer")),
        ("text_blobs", Top, any("text blob")),
        ("unsafe", Own, any("unsafe binding")),
        ("vectorize", Own, any("Vectorize index")),
        ("version_metadata", Own, any("version metadata binding")),
        ("vpc_services", Own, any("VPC service")),
        ("wasm_modules", Top, any("WebAssembly binding")),
        ("worker_loaders", Own, any("Worker loader")),
        (
            "node_compat",
            Inherited,
            Removed("leave it out: there are no modules of Node.js in this version"),
        ),
        ("type", Top, Removed("leave it out; set main")),
        ("usage_model", Inherited, Removed("leave it out")),
        ("webpack_config", Top, Removed("leave it out; the bundler is esbuild")),
    ]
};

/// What is known of a key.
pub(crate) fn lookup(key: &str) -> Option<(Level, Meaning)> {
    KEYS.iter().find(|(name, _, _)| *name == key).map(|&(_, level, meaning)| (level, meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_listed_once() {
        let mut names: Vec<_> = KEYS.iter().map(|key| key.0).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
