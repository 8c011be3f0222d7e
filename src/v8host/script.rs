//! A version of a user's application as a realm runs it: modules, bindings, settings.
//!
//! Invariant: it never changes once it is shared, but for V8's code cache, which realms fill.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use sourcemap::SourceMap;

/// One version of one Worker. `Send + Sync`: each shard makes realms from the same one.
#[derive(Default)]
pub struct Script {
    /// Name of the Worker.
    pub name: String,
    /// Names are paths as the bundle has them (`index.js`, `lib/util.js`): specifiers resolve
    /// against them.
    pub modules: Vec<Module>,
    /// Name of the main module.
    pub main: String,
    /// `2026-01-31`
    pub compatibility_date: String,
    /// CPU time of one turn, if the configuration limits it.
    pub turn_cpu_max: Option<Duration>,
    /// Requests that one event may send, to the network and to cells, if the configuration says.
    pub subrequests_max: Option<u32>,
    /// Flags as in the configuration.
    pub compatibility_flags: Vec<String>,
    /// `vars`: text and JSON values.
    pub vars: serde_json::Map<String, serde_json::Value>,
    /// Secret texts: on `env` like `vars`; they win over a var of the same name.
    pub secrets: Vec<(String, String)>,
    /// Durable Object namespaces on `env`.
    pub durable_objects: Vec<DurableObjectBinding>,
}

/// One file of the bundle.
pub struct Module {
    /// Its path in the bundle.
    pub name: String,
    /// How it is loaded.
    pub kind: ModuleKind,
    /// The file.
    pub content: Bytes,
    /// A source map in JSON, for `EsModule`s.
    pub source_map: Option<Bytes>,
    cache: OnceLock<Box<[u8]>>,
    map: OnceLock<Option<Arc<SourceMap>>>,
}

/// Kinds of module, as `rules` of the configuration name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleKind {
    /// JavaScript with `import` and `export`.
    EsModule,
    /// JavaScript with `require` and `module.exports`.
    CommonJs,
    /// The default export is the text.
    Text,
    /// The default export is an `ArrayBuffer`.
    Data,
    /// The default export is a `WebAssembly.Module`.
    Wasm,
    /// The default export is the parsed value.
    Json,
}

/// `durable_objects.bindings[]`.
#[derive(Clone, Debug)]
pub struct DurableObjectBinding {
    /// Name on `env`.
    pub name: String,
    /// Name of the exported class.
    pub class: String,
    /// Key of the namespace in the bucket.
    pub namespace: String,
}

impl Module {
    /// A module without a source map.
    pub fn new(name: impl Into<String>, kind: ModuleKind, content: impl Into<Bytes>) -> Self {
        Self {
            name: name.into(),
            kind,
            content: content.into(),
            source_map: None,
            cache: OnceLock::new(),
            map: OnceLock::new(),
        }
    }

    /// With a source map (JSON).
    #[must_use]
    pub fn with_source_map(mut self, map: impl Into<Bytes>) -> Self {
        self.source_map = Some(map.into());
        self
    }

    /// V8's code cache of an earlier realm.
    pub(crate) fn code_cache(&self) -> Option<&[u8]> {
        self.cache.get().map(|cache| &**cache)
    }

    /// Keeps V8's code cache for later realms. The first one stays: all realms run the same code.
    pub(crate) fn keep_code_cache(&self, cache: &[u8]) {
        self.cache.get_or_init(|| cache.into());
    }

    fn source_map(&self) -> Option<&Arc<SourceMap>> {
        let parse = || {
            let json = self.source_map.as_ref()?;
            // A map that cannot be read is no reason to hide the error that it should explain.
            SourceMap::from_slice(json).ok().map(Arc::new)
        };
        self.map.get_or_init(parse).as_ref()
    }
}

impl Script {
    /// The module of this name.
    pub fn module(&self, name: &str) -> Option<(usize, &Module)> {
        self.modules.iter().enumerate().find(|(_, module)| module.name == name)
    }

    pub(crate) fn has_source_maps(&self) -> bool {
        self.modules.iter().any(|module| module.source_map.is_some())
    }

    /// The position in the source of `row:column` (both from 1) of module `file`.
    pub(crate) fn original_position(
        &self,
        file: &str,
        row: u32,
        column: u32,
    ) -> Option<(String, u32, u32)> {
        let file = file.strip_prefix("file:///").unwrap_or(file);
        let (_, module) = self.module(file)?;
        let map = module.source_map()?;
        let token = map.lookup_token(row.checked_sub(1)?, column.checked_sub(1)?)?;
        Some((token.get_source()?.to_owned(), token.get_src_line() + 1, token.get_src_col() + 1))
    }
}
