//! The heads of a request to a cell of another node, and of its answer.
//!
//! Their bodies are the bodies of the call: raw bytes, or the messages of a WebSocket
//! ([`crate::socket`]) if the request asked for one and the answer has status 101.
//!
//! A node that gets such a call serves it, or refuses it with [`crate::Code::NotOwner`]: it never
//! forwards what was forwarded to it, so that no request goes in circles.

use bytes::{BufMut, Bytes};
use celld_core::cell::CellId;
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::node::SessionId;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::FrameError;
use crate::wire::{Reader, put_bytes, put_cell, put_option, put_session};

/// Of the name of an error in [`Failure::to_words`], in bytes: that of a class.
const NAME_MAX: usize = 128;

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchHead {
    /// Whose turn it is.
    pub cell: CellId,
    /// Its class in the script.
    pub class: String,
    /// The name that its id was made from, where the caller knows it.
    pub name: Option<String>,
    /// The ownership that the caller routed by: who is not this owner refuses. `None`: the cell
    /// has no owner, and this node is to become it.
    pub token: Option<FencingToken>,
    /// The method.
    pub method: Method,
    /// The whole URL, as the cell will see it.
    pub url: String,
    /// Names may repeat.
    pub headers: HeaderMap,
    /// What follows.
    pub content: Content,
}

/// The head of a request whose parts belong to who sends it.
#[derive(Clone, Copy, Debug)]
pub struct FetchParts<'a> {
    /// As in [`FetchHead`].
    pub cell: &'a CellId,
    /// As in [`FetchHead`].
    pub class: &'a str,
    /// As in [`FetchHead`].
    pub name: Option<&'a str>,
    /// As in [`FetchHead`].
    pub token: Option<(Epoch, &'a SessionId)>,
    /// As in [`FetchHead`].
    pub method: &'a Method,
    /// As in [`FetchHead`].
    pub url: &'a str,
    /// As in [`FetchHead`].
    pub headers: &'a HeaderMap,
    /// As in [`FetchHead`].
    pub content: Content,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchReply {
    /// The cell has answered.
    Response(ResponseHead),
    /// It has thrown, or was reset; no body follows.
    Failure(Failure),
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 101, or 200 to 599.
    pub status: u16,
    /// Empty: the standard phrase.
    pub status_text: String,
    /// Names may repeat.
    pub headers: HeaderMap,
    /// What follows.
    pub content: Content,
}

/// What a cell threw, with all that its caller's JavaScript sees of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// `Error`, `TypeError`, … as JavaScript names it.
    pub name: String,
    /// `error.message`.
    pub message: String,
    /// `error.stack`, without the first line; may be empty.
    pub stack: String,
    /// `error.remote`: the cell's own code threw it.
    pub remote: bool,
    /// `error.retryable`.
    pub retryable: bool,
    /// `error.overloaded`.
    pub overloaded: bool,
    /// `error.durableObjectReset`.
    pub durable_object_reset: bool,
    /// What else its code has hung on it, serialised; may be empty.
    pub thrown: Bytes,
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No body, which is something else than an empty one.
    Nothing,
    /// A body, and its length in bytes where it is known before.
    Body(Option<u64>),
    /// Request: a WebSocket is asked for. Response: it is open.
    Messages,
}

impl FetchHead {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said. The head as a whole is checked when the call is opened.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let Self { cell, class, name, token, method, url, headers, content } = self;
        let name = name.as_deref();
        let token = token.as_ref().map(|token| (token.epoch, &token.session));
        FetchParts { cell, class, name, token, method, url, headers, content: *content }.encode()
    }

    /// From bytes. Values of headers share them.
    ///
    /// # Errors
    /// They are no such head.
    pub fn decode(head: &Bytes) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let cell = reader.cell()?;
        let class = reader.text()?.to_owned();
        let name = reader.option(|reader| reader.text().map(str::to_owned))?;
        let token = reader.option(|reader| {
            let epoch = Epoch::from_record(reader.u64()?);
            let epoch = epoch.ok_or(FrameError::Malformed("its epoch is zero"))?;
            Ok(FencingToken { epoch, session: reader.session()? })
        })?;
        let method = Method::from_bytes(reader.bytes()?);
        Ok(Self {
            cell,
            class,
            name,
            token,
            method: method.map_err(|_| FrameError::Malformed("the method of a request"))?,
            url: reader.text()?.to_owned(),
            content: Content::read(&mut reader)?,
            headers: read_headers(head, reader)?,
        })
    }
}

impl FetchParts<'_> {
    /// As [`FetchHead::encode`].
    ///
    /// # Errors
    /// As there.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(512);
        put_cell(&mut out, self.cell)?;
        put_bytes(&mut out, "the name of a class", self.class.as_bytes())?;
        put_option(&mut out, self.name, |out, name| {
            put_bytes(out, "the name of a cell", name.as_bytes())
        })?;
        put_option(&mut out, self.token, |out, (epoch, session)| {
            out.put_u64(epoch.get());
            put_session(out, session);
            Ok(())
        })?;
        put_bytes(&mut out, "a method", self.method.as_str().as_bytes())?;
        put_bytes(&mut out, "a URL", self.url.as_bytes())?;
        self.content.append(&mut out);
        append_headers(&mut out, self.headers)?;
        Ok(out.into())
    }
}

impl FetchReply {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said, or the status is none.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(256);
        match self {
            Self::Response(response) => {
                out.put_u8(0);
                out.put_u16(check_status(response.status)?);
                put_bytes(&mut out, "a status text", response.status_text.as_bytes())?;
                response.content.append(&mut out);
                append_headers(&mut out, &response.headers)?;
            }
            Self::Failure(failure) => {
                out.put_u8(1);
                for part in [&failure.name, &failure.message, &failure.stack] {
                    put_bytes(&mut out, "a part of a failure", part.as_bytes())?;
                }
                for flag in failure.flags() {
                    out.put_u8(flag.into());
                }
                put_bytes(&mut out, "what was thrown", &failure.thrown)?;
            }
        }
        Ok(out.into())
    }

    /// From bytes. Values of headers share them.
    ///
    /// # Errors
    /// They are no such head.
    pub fn decode(head: &Bytes) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        match reader.u8()? {
            0 => Ok(Self::Response(ResponseHead {
                status: check_status(reader.u16()?)?,
                status_text: reader.text()?.to_owned(),
                content: Content::read(&mut reader)?,
                headers: read_headers(head, reader)?,
            })),
            1 => {
                let failure = Failure {
                    name: reader.text()?.to_owned(),
                    message: reader.text()?.to_owned(),
                    stack: reader.text()?.to_owned(),
                    remote: reader.bool()?,
                    retryable: reader.bool()?,
                    overloaded: reader.bool()?,
                    durable_object_reset: reader.bool()?,
                    thrown: head.slice_ref(reader.bytes()?),
                };
                reader.end()?;
                Ok(Self::Failure(failure))
            }
            _ => Err(FrameError::Malformed("the kind of an answer")),
        }
    }
}

impl Failure {
    fn flags(&self) -> [bool; 4] {
        [self.remote, self.retryable, self.overloaded, self.durable_object_reset]
    }

    /// What goes with [`crate::Code::Broken`]: its marks as a digit, its name, and in the next line its
    /// message, of which the refusal keeps what fits.
    pub fn to_words(&self) -> String {
        let marks = self.flags().iter().fold(0, |marks, mark| marks << 1 | u8::from(*mark));
        let name = self.name.lines().next().unwrap_or_default();
        let name = &name[..name.floor_char_boundary(NAME_MAX)];
        format!("{marks:x}{name}\n{}", self.message)
    }

    /// Reads [`Self::to_words`].
    ///
    /// # Errors
    /// They are other words.
    pub fn of_words(words: &str) -> Result<Self, FrameError> {
        const OTHER: FrameError = FrameError::Malformed("how a body has failed");
        let (head, message) = words.split_once('\n').ok_or(OTHER)?;
        let mark = head.chars().next().ok_or(OTHER)?;
        let marks = mark.to_digit(16).ok_or(OTHER)?;
        let [remote, retryable, overloaded, durable_object_reset] =
            [8, 4, 2, 1].map(|bit| marks & bit != 0);
        Ok(Self {
            name: head[mark.len_utf8()..].to_owned(),
            message: message.to_owned(),
            remote,
            retryable,
            overloaded,
            durable_object_reset,
            ..Self::default()
        })
    }
}

fn check_status(status: u16) -> Result<u16, FrameError> {
    let fits = status == 101 || (200..=599).contains(&status);
    fits.then_some(status).ok_or(FrameError::Malformed("the status of a response"))
}

impl Content {
    fn append(self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => out.put_u8(0),
            Self::Body(None) => out.put_u8(1),
            Self::Body(Some(len)) => {
                out.put_u8(2);
                out.put_u64(len);
            }
            Self::Messages => out.put_u8(3),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        match reader.u8()? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::Body(None)),
            2 => Ok(Self::Body(Some(reader.u64()?))),
            3 => Ok(Self::Messages),
            _ => Err(FrameError::Malformed("what follows a head")),
        }
    }
}

/// To the end of the head: their number need not be trusted, as it is not sent.
fn append_headers(out: &mut Vec<u8>, headers: &HeaderMap) -> Result<(), FrameError> {
    for (name, value) in headers {
        put_bytes(out, "the name of a header", name.as_str().as_bytes())?;
        put_bytes(out, "the value of a header", value.as_bytes())?;
    }
    Ok(())
}

fn read_headers(head: &Bytes, mut reader: Reader<'_>) -> Result<HeaderMap, FrameError> {
    let mut headers = HeaderMap::new();
    while !reader.is_empty() {
        let name = HeaderName::from_bytes(reader.bytes()?);
        let name = name.map_err(|_| FrameError::Malformed("the name of a header"))?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(reader.bytes()?));
        let value = value.map_err(|_| FrameError::Malformed("the value of a header"))?;
        let fits = headers.try_append(name, value);
        fits.map_err(|_| FrameError::Malformed("more headers than a request can have"))?;
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        prop::collection::vec(("[a-z-]{1,8}", "[ -~]{0,20}"), 0..8).prop_map(|all| {
            let pair = |(name, value): (String, String)| {
                let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
                (name, HeaderValue::from_str(value.trim()).expect("a value"))
            };
            let mut headers = HeaderMap::new();
            for (name, value) in all.into_iter().map(pair) {
                headers.append(name, value);
            }
            headers
        })
    }

    fn content() -> impl Strategy<Value = Content> {
        prop_oneof![
            Just(Content::Nothing),
            prop::option::of(any::<u64>()).prop_map(Content::Body),
            Just(Content::Messages)
        ]
    }

    fn token() -> impl Strategy<Value = FencingToken> {
        (1..=u64::MAX, any::<u128>()).prop_map(|(epoch, session)| FencingToken {
            epoch: Epoch::from_record(epoch).expect("not zero"),
            session: SessionId::parse(&format!("{session:032x}")).expect("32 digits"),
        })
    }

    fn head() -> impl Strategy<Value = FetchHead> {
        let cell = ("[A-Za-z][A-Za-z0-9._-]{0,20}", any::<[u64; 4]>()).prop_map(|(name, n)| {
            let id = n.map(|n| format!("{n:016x}")).concat();
            CellId::new(&name, &id).expect("a good name")
        });
        let name = prop::option::of("\\PC{0,20}");
        let route = (cell, "\\PC{0,20}", name, prop::option::of(token()));
        let rest = ("[A-Z]{1,8}", "\\PC{0,60}", headers(), content());
        (route, rest).prop_map(|((cell, class, name, token), (method, url, headers, content))| {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            FetchHead { cell, class, name, token, method, url, headers, content }
        })
    }

    fn reply() -> impl Strategy<Value = FetchReply> {
        let response = (prop_oneof![Just(101), 200..600_u16], "\\PC{0,9}", headers(), content())
            .prop_map(|(status, status_text, headers, content)| {
                FetchReply::Response(ResponseHead { status, status_text, headers, content })
            });
        let thrown = prop::collection::vec(any::<u8>(), 0..30);
        let texts = ("\\PC{0,9}", "\\PC{0,30}", "\\PC{0,30}");
        let failure = (texts, any::<[bool; 4]>(), thrown).prop_map(
            |((name, message, stack), flags, thrown)| {
                let [remote, retryable, overloaded, durable_object_reset] = flags;
                FetchReply::Failure(Failure {
                    name,
                    message,
                    stack,
                    remote,
                    retryable,
                    overloaded,
                    durable_object_reset,
                    thrown: thrown.into(),
                })
            },
        );
        prop_oneof![response, failure]
    }

    proptest! {
        #[test]
        fn heads_read_back_what_they_say(head in head(), reply in reply()) {
            prop_assert_eq!(FetchHead::decode(&head.encode().expect("short")), Ok(head));
            prop_assert_eq!(FetchReply::decode(&reply.encode().expect("short")), Ok(reply));
        }

        #[test]
        fn a_head_that_is_cut_or_changed_never_panics(
            head in head(),
            reply in reply(),
            cut in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            for bytes in [head.encode().expect("short"), reply.encode().expect("short")] {
                let mut changed = bytes.to_vec();
                changed[cut.index(bytes.len())] = to;
                let changed = Bytes::from(changed);
                let _any = (FetchHead::decode(&changed), FetchReply::decode(&changed));
                let cut = bytes.slice(..cut.index(bytes.len()));
                let _any = (FetchHead::decode(&cut), FetchReply::decode(&cut));
            }
        }
    }

    #[test]
    fn how_a_body_has_failed_is_said_in_words() {
        for (n, name, message) in [(0, "Error", ""), (5, "RangeError", "a\nb: é"), (15, "", "x")] {
            let [remote, retryable, overloaded, durable_object_reset] =
                [8, 4, 2, 1].map(|bit| n & bit != 0);
            let failure = Failure {
                name: name.into(),
                message: message.into(),
                remote,
                retryable,
                overloaded,
                durable_object_reset,
                ..Failure::default()
            };
            assert_eq!(Failure::of_words(&failure.to_words()), Ok(failure));
        }
        let odd = Failure { name: "é".repeat(100) + "\nx", ..Failure::default() };
        assert_eq!(Failure::of_words(&odd.to_words()).expect("words").name, "é".repeat(64));
        for words in ["", "\n", "x", "8Error", "gError\nx", "é\nx"] {
            assert!(Failure::of_words(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_status_that_is_none_is_neither_sent_nor_taken() {
        let mut response = ResponseHead {
            status: 200,
            status_text: String::new(),
            headers: HeaderMap::new(),
            content: Content::Nothing,
        };
        let mut good = FetchReply::Response(response.clone()).encode().expect("short").to_vec();
        good[1..3].copy_from_slice(&102_u16.to_be_bytes());
        let refused = Err(FrameError::Malformed("the status of a response"));
        assert_eq!(FetchReply::decode(&good.into()), refused);
        response.status = 0;
        assert_eq!(FetchReply::Response(response).encode().map(|_| ()), refused.map(|_| ()));
    }
}
