//! The XML of stores: listings, errors, uploads.
//!
//! Invariant: the text is whole and bounded before it comes here; what is taken from it is bounded
//! too. Names are compared without their namespace's prefix; unknown elements are passed over.
//! Source: Amazon S3 API reference, `ListObjectsV2`, `DeleteObjects`, "REST error responses".

use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};

/// The longest text that is taken from an element.
pub(super) const TEXT_BYTES_MAX: usize = 16 << 10;
/// The longest name of an element: ten times those of stores.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Behind the name of an element whose text is percent-encoded.
pub(crate) const ENCODED: &str = "@Encoded";
/// The deepest nesting that is followed.
pub(super) const DEPTH_MAX: usize = 16;

/// An answer that is not what it should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum XmlFault {
    #[error("it is not well-formed XML")]
    Malformed,
    #[error("its root is <{0}>")]
    Root(String),
    #[error("it has no <{0}>")]
    Lacks(&'static str),
    #[error("its <{0}> is malformed")]
    Value(&'static str),
    #[error("it has more than it was asked for")]
    TooMuch,
}

/// The error in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorBody {
    pub code: String,
    pub message: String,
    /// Where the bucket is.
    pub region: Option<String>,
    /// The store's clock, as it writes it.
    pub server_time: Option<String>,
    /// The length of an object that is shorter than the wanted range.
    pub size: Option<u64>,
}

/// Reads an error; `None` when the text is something else, such as a proxy's page.
pub(crate) fn error(text: &[u8]) -> Option<ErrorBody> {
    let mut found = ErrorBody::default();
    let root = walk(text, &mut |path, text| {
        match path {
            "Error/Code" => found.code = text.to_owned(),
            "Error/Message" => found.message = text.to_owned(),
            "Error/Region" => found.region = Some(text.to_owned()),
            "Error/ServerTime" => found.server_time = Some(text.to_owned()),
            "Error/ActualObjectSize" => found.size = text.parse().ok(),
            _ => {}
        }
        Ok(())
    });
    (root.is_ok_and(|root| root == "Error") && !found.code.is_empty()).then_some(found)
}

/// Reads a document and shows each element at its end: the names that lead to it, joined by
/// slashes, and its text, which is empty for one with elements inside. Returns the root's name.
/// The only attribute that is read is Azure's `Encoded="true"`: it is shown as [`ENCODED`] behind
/// the element's name.
///
/// # Errors
/// It is not well-formed, or what `seen` says.
pub(crate) fn walk(
    text: &[u8],
    seen: &mut dyn FnMut(&str, &str) -> Result<(), XmlFault>,
) -> Result<String, XmlFault> {
    let text = std::str::from_utf8(text).map_err(|_| XmlFault::Malformed)?;
    let mut reader = Reader::from_str(text);
    let mut open = Open::default();
    let mut root = None;
    loop {
        match reader.read_event().map_err(|_| XmlFault::Malformed)? {
            Event::Start(start) => {
                open.enter(start.local_name().as_ref(), &mut root)?;
                let encoded = start.try_get_attribute("Encoded");
                if encoded.is_ok_and(|found| found.is_some_and(|found| &*found.value == "true")) {
                    open.path.push_str(ENCODED);
                }
            }
            Event::Empty(empty) => {
                open.enter(empty.local_name().as_ref(), &mut root)?;
                open.leave(seen)?;
            }
            Event::End(_) => open.leave(seen)?,
            Event::Text(piece) => open.append(&piece.xml10_content())?,
            Event::CData(piece) => open.append(&piece.xml10_content())?,
            Event::GeneralRef(name) => open.append(resolve(&name)?.encode_utf8(&mut [0; 4]))?,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
            // Nobody who means well declares entities here.
            Event::DocType(_) => return Err(XmlFault::Malformed),
            Event::Eof => break,
        }
    }
    root.filter(|_| open.starts.is_empty()).ok_or(XmlFault::Malformed)
}

/// The elements that have begun and not ended.
#[derive(Default)]
struct Open {
    path: String,
    /// The length of `path` before each of them.
    starts: Vec<usize>,
    text: String,
}

impl Open {
    fn enter(&mut self, name: &str, root: &mut Option<String>) -> Result<(), XmlFault> {
        let second_root = self.starts.is_empty() && root.is_some();
        if second_root || self.starts.len() == DEPTH_MAX || name.len() > NAME_BYTES_MAX {
            return Err(XmlFault::Malformed);
        }
        root.get_or_insert_with(|| name.to_owned());
        self.starts.push(self.path.len());
        if self.starts.len() > 1 {
            self.path.push('/');
        }
        self.path.push_str(name);
        self.text.clear();
        Ok(())
    }

    fn leave(
        &mut self,
        seen: &mut dyn FnMut(&str, &str) -> Result<(), XmlFault>,
    ) -> Result<(), XmlFault> {
        seen(&self.path, &self.text)?;
        self.text.clear();
        self.path.truncate(self.starts.pop().ok_or(XmlFault::Malformed)?);
        Ok(())
    }

    fn append(&mut self, text: &str) -> Result<(), XmlFault> {
        if self.text.len() + text.len() > TEXT_BYTES_MAX {
            return Err(XmlFault::TooMuch);
        }
        self.text.push_str(text);
        Ok(())
    }
}

fn resolve(name: &BytesRef<'_>) -> Result<char, XmlFault> {
    let number = name.resolve_char_ref().map_err(|_| XmlFault::Malformed)?;
    number
        .or(match &*name.xml10_content() {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => None,
        })
        .ok_or(XmlFault::Malformed)
}

/// Appends `text` as the text of an element. `None`: it has a sign that XML cannot carry.
pub(crate) fn escape(text: &str, into: &mut String) -> Option<()> {
    for sign in text.chars() {
        match sign {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            // Readers make one line break of any other.
            '\r' => into.push_str("&#13;"),
            '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => {
                into.push(sign)
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_read_and_a_page_of_a_proxy_is_none() {
        let text = b"<?xml version=\"1.0\"?>\n<Error xmlns=\"urn:x\"><Code>NoSuchKey</Code>\
            <Message>a &lt;b&gt; &#38; <![CDATA[<c>]]></Message><Region>eu-1</Region>\
            <Nested><Code>Other</Code></Nested></Error>";
        let found = error(text).expect("an error");
        assert_eq!(found.code, "NoSuchKey");
        assert_eq!(found.message, "a <b> & <c>");
        assert_eq!(found.region.as_deref(), Some("eu-1"));
        for other in [
            &b""[..],
            b"<html><body><h1>502</h1></body></html>",
            b"<!DOCTYPE html><Error><Code>x</Code></Error>",
            b"<Error><Code>NoSuchKey</Code>",
            b"<Error><Code>NoSuchKey</Error></Code>",
            b"<Error></Error>",
            b"<Error><Code>&unknown;</Code></Error>",
            b"<Error><Code>a</Code></Error><Error/>",
            b"\xff<Error><Code>NoSuchKey</Code></Error>",
            b"{}",
        ] {
            assert_eq!(error(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn depth_and_text_are_bounded() {
        let deep = "<a>".repeat(1_000_000);
        assert_eq!(walk(deep.as_bytes(), &mut |_, _| Ok(())), Err(XmlFault::Malformed));
        let long = format!("<a>{}</a>", "x".repeat(TEXT_BYTES_MAX + 1));
        assert_eq!(walk(long.as_bytes(), &mut |_, _| Ok(())), Err(XmlFault::TooMuch));
    }

    #[test]
    fn what_is_escaped_comes_back() {
        let odd = "a<b>&c\"'\r\n\té🦀";
        let mut text = "<a>".to_owned();
        escape(odd, &mut text).expect("XML carries it");
        text.push_str("</a>");
        let mut seen = String::new();
        let read = walk(text.as_bytes(), &mut |_, text| {
            seen.push_str(text);
            Ok(())
        });
        assert_eq!((read.as_deref(), seen.as_str()), (Ok("a"), odd));
        assert_eq!(escape("\u{1}", &mut String::new()), None);
    }
}
