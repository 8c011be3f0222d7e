//! The readers of answers, on what stores say and on anything else.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::az::Azure;
use super::super::dialect::{Dialect, encode_query};
use super::super::s3::S3;
use super::super::xml::{self, DEPTH_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX, XmlFault};
use crate::Entry;

/// An element, as a test makes it.
#[derive(Clone, Debug)]
struct Element {
    name: String,
    inside: Inside,
}

#[derive(Clone, Debug)]
enum Inside {
    Text(String),
    Elements(Vec<Element>),
}

/// Any text that XML can carry.
fn text() -> impl Strategy<Value = String> {
    let odd =
        prop::sample::select(vec!["&", "<", "]]>", "\r\n", "\r", "\t", "\"", "'", "%2F", "🦀"]);
    let piece = prop_oneof![odd.prop_map(ToOwned::to_owned), ".{0,12}"];
    let carried = |text: &String| xml::escape(text, &mut String::new()).is_some();
    vec(piece, 0..4).prop_map(|pieces| pieces.concat()).prop_filter("XML cannot", carried)
}

fn element() -> impl Strategy<Value = Element> {
    let name = "[A-Za-z][A-Za-z0-9]{0,9}";
    let leaf = (name, text()).prop_map(|(name, text)| Element { name, inside: Inside::Text(text) });
    leaf.prop_recursive(5, 40, 5, move |inner| {
        (name, vec(inner, 1..5))
            .prop_map(|(name, elements)| Element { name, inside: Inside::Elements(elements) })
    })
}

/// How a store may write what says the same.
#[derive(Clone, Copy, Debug)]
struct Manner {
    prefixed: bool,
    cdata: bool,
    comments: bool,
}

impl Element {
    fn write(&self, manner: Manner, into: &mut String) {
        let prefix = if manner.prefixed { "s3:" } else { "" };
        into.push_str(&format!("<{prefix}{} a=\"1\">", self.name));
        if manner.comments {
            into.push_str("<!-- <Code>no</Code> --><?pi <Code>?>");
        }
        match &self.inside {
            Inside::Elements(elements) => elements.iter().for_each(|e| e.write(manner, into)),
            // A line break would be another one behind it.
            Inside::Text(text) if manner.cdata && !text.contains(['\r']) => {
                into.push_str(&format!("<![CDATA[{}]]>", text.replace("]]>", "]]]]><![CDATA[>")));
            }
            Inside::Text(text) => xml::escape(text, into).expect("XML carries it"),
        }
        into.push_str(&format!("</{prefix}{}>", self.name));
    }

    /// What a walk shows.
    fn shown(&self, above: &str, into: &mut Vec<(String, String)>) {
        let path =
            if above.is_empty() { self.name.clone() } else { format!("{above}/{}", self.name) };
        let text = match &self.inside {
            Inside::Text(text) => text.clone(),
            Inside::Elements(elements) => {
                elements.iter().for_each(|element| element.shown(&path, into));
                String::new()
            }
        };
        into.push((path, text));
    }
}

fn manner() -> impl Strategy<Value = Manner> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(prefixed, cdata, comments)| Manner {
        prefixed,
        cdata,
        comments,
    })
}

fn document(element: &Element, manner: Manner) -> String {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
    element.write(manner, &mut text);
    text
}

/// All that a walk shows, and whether what it shows is within bounds.
fn walked(text: &[u8]) -> Result<(String, Vec<(String, String)>), XmlFault> {
    let mut shown = Vec::new();
    let root = xml::walk(text, &mut |path, text| {
        assert!(path.split('/').count() <= DEPTH_MAX && text.len() <= TEXT_BYTES_MAX);
        assert!(path.split('/').all(|name| name.len() <= NAME_BYTES_MAX + xml::ENCODED.len()));
        shown.push((path.to_owned(), text.to_owned()));
        Ok(())
    })?;
    Ok((root, shown))
}

/// Bytes that were sound once, or never.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let sound = (element(), manner()).prop_map(|(element, manner)| document(&element, manner));
    let listing = vec("[a-z/&<%+ ]{0,12}", 0..6).prop_map(|keys| s3_listing(&keys, true, true));
    let changes = vec((any::<Index>(), any::<u8>(), any::<Index>()), 0..6);
    let changed = (prop_oneof![sound, listing], changes).prop_map(|(text, changes)| {
        let mut bytes = text.into_bytes();
        for (at, byte, from) in changes {
            let (at, from) = (at.index(bytes.len()), from.index(bytes.len()));
            match byte % 4 {
                0 => bytes.truncate(at + 1),
                1 => bytes[at] = byte,
                2 => drop(bytes.drain(at.min(from)..(at.max(from) + 1).min(at.min(from) + 30))),
                _ => {
                    let piece = bytes[from..(from + 40).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        bytes
    });
    prop_oneof![4 => changed, 1 => vec(any::<u8>(), 0..300)]
}

fn s3_listing(keys: &[String], encoded: bool, more: bool) -> String {
    let mut text = "<ListBucketResult>".to_owned();
    if encoded {
        text.push_str("<EncodingType>url</EncodingType>");
    }
    if more {
        text.push_str("<IsTruncated>true</IsTruncated>");
        text.push_str("<NextContinuationToken>next &amp; last</NextContinuationToken>");
    }
    for (size, key) in keys.iter().enumerate() {
        let mut spelled = format!("p/{key}");
        if encoded {
            spelled.clear();
            encode_query(&format!("p/{key}"), &mut spelled);
        }
        text.push_str("<Contents><Key>");
        xml::escape(&spelled, &mut text).expect("XML carries it");
        text.push_str(&format!("</Key><Size>{size}</Size></Contents>"));
    }
    text + "</ListBucketResult>"
}

fn az_listing(keys: &[String], more: bool) -> String {
    let mut text = "<EnumerationResults><Blobs>".to_owned();
    for (size, key) in keys.iter().enumerate() {
        text.push_str("<Blob><Name>");
        xml::escape(&format!("p/{key}"), &mut text).expect("XML carries it");
        let length = format!("<Content-Length>{size}</Content-Length>");
        text.push_str(&format!("</Name><Properties>{length}</Properties></Blob>"));
    }
    let next = if more { "<NextMarker>next</NextMarker>" } else { "<NextMarker/>" };
    format!("{text}</Blobs>{next}</EnumerationResults>")
}

fn entries(keys: &[String]) -> Vec<Entry> {
    keys.iter().zip(0..).map(|(key, size)| Entry { key: key.clone(), size }).collect()
}

fn dialects() -> [Box<dyn Dialect>; 2] {
    let origin = || "http://h".to_owned();
    [
        Box::new(S3::new(origin(), "b", "p/", true, false)),
        Box::new(Azure::new(origin(), "", "b", "p/")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_element_is_shown_once_at_its_end_with_its_text(
        element in element(),
        manner in manner(),
    ) {
        let mut wanted = Vec::new();
        element.shown("", &mut wanted);
        let walked = walked(document(&element, manner).as_bytes());
        prop_assert_eq!(walked, Ok((element.name.clone(), wanted)));
    }

    #[test]
    fn a_document_that_is_cut_anywhere_is_refused(
        element in element(),
        manner in manner(),
        cut in any::<Index>(),
    ) {
        let text = document(&element, manner);
        let cut = cut.index(text.len());
        prop_assert!(walked(&text.as_bytes()[..cut]).is_err(), "{}", &text[..cut]);
    }

    #[test]
    fn whatever_comes_is_read_or_refused_within_bounds(bytes in damaged()) {
        if let Ok((root, shown)) = walked(&bytes) {
            prop_assert!(shown.len() * 3 <= bytes.len());
            prop_assert!(root.len() <= NAME_BYTES_MAX);
        }
        let error = xml::error(&bytes);
        prop_assert!(error.is_none_or(|error| !error.code.is_empty()));
        for dialect in dialects() {
            if let Ok(listing) = dialect.listing(&bytes) {
                prop_assert!(listing.entries.len() * 20 <= bytes.len());
            }
            if let Ok(upload) = dialect.upload(&bytes) {
                prop_assert!(!upload.is_empty());
            }
            let _read = dialect.not_deleted(&bytes);
        }
    }

    #[test]
    fn keys_come_out_of_a_listing_as_they_are(
        keys in vec(text(), 0..20),
        encoded in any::<bool>(),
        more in any::<bool>(),
    ) {
        let [s3, az] = dialects();
        let listing = s3.listing(s3_listing(&keys, encoded, more).as_bytes());
        let listing = listing.expect("a listing");
        prop_assert_eq!(&listing.entries, &entries(&keys));
        prop_assert_eq!(listing.next.as_deref(), more.then_some("next & last"));
        let listing = az.listing(az_listing(&keys, more).as_bytes()).expect("a listing");
        prop_assert_eq!(&listing.entries, &entries(&keys));
        prop_assert_eq!(listing.next.as_deref(), more.then_some("next"));
    }
}

#[test]
fn one_answer_has_a_thousand_keys_at_most() {
    let keys = |count| (0..count).map(|n| format!("{n:06}")).collect::<Vec<_>>();
    let [s3, az] = dialects();
    for (count, wanted) in
        [(1_000, Ok(1_000)), (1_001, Err(XmlFault::TooMuch)), (100_000, Err(XmlFault::TooMuch))]
    {
        let counted = |listing: Result<super::super::dialect::Listing, XmlFault>| {
            listing.map(|listing| listing.entries.len())
        };
        let keys = keys(count);
        assert_eq!(counted(s3.listing(s3_listing(&keys, false, false).as_bytes())), wanted);
        assert_eq!(counted(az.listing(az_listing(&keys, false).as_bytes())), wanted);
    }
}

#[test]
fn names_and_attributes_take_time_and_memory_by_their_length_only() {
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    assert_eq!(walked(format!("<{long}/>").as_bytes()), Err(XmlFault::Malformed));
    // As many as fit into a listing: to compare each with each would take minutes.
    let many: String = (0..700_000).map(|n| format!(" a{n}=''")).collect();
    let begin = std::time::Instant::now();
    let (root, _) = walked(format!("<Error{many}><Code>c</Code></Error>").as_bytes()).expect("XML");
    assert_eq!(root, "Error");
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
}
