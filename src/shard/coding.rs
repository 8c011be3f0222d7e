//! Content codings: bodies that are compressed on their way, and plain for those who read them.
//!
//! Invariant: a body that is handed on with the coding it came in is neither unpacked nor packed
//! again. As workerd: `gzip` and `br`, spelled just so; only bodies of responses; nothing is
//! negotiated, as the application says by its headers what is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use celld_v8host::compression::{CompressionError, Decoder, Encoder, Format, Members, STEP_BYTES};
use celld_v8host::{Encoding, Failure};
use futures_util::stream::{LocalBoxStream, Stream, once};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::body::{Flow, failure};

type Pieces = LocalBoxStream<'static, Result<Bytes, Failure>>;

/// How the bytes of a body are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Brotli,
}

impl Coding {
    /// What the headers name, if it is something that is unpacked here.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        match (values.next()?.as_bytes(), values.next()) {
            (b"gzip", None) => Some(Coding::Gzip),
            (b"br", None) => Some(Coding::Brotli),
            _ => None,
        }
    }

    fn format(self) -> Format {
        match self {
            Coding::Gzip => Format::Gzip,
            Coding::Brotli => Format::Brotli,
        }
    }
}

/// The body of a response with these headers, for a reader who wants it as `to` says, from a writer
/// who made it as `from` says.
pub(crate) fn recode(body: Flow, headers: &HeaderMap, from: Encoding, to: Encoding) -> Flow {
    let Some(coding) = Coding::of(headers) else {
        return match to {
            Encoding::Automatic => body,
            Encoding::Manual => packed(body, None),
        };
    };
    match (from, to) {
        (Encoding::Automatic, Encoding::Automatic) => body,
        (Encoding::Automatic, Encoding::Manual) => packed(body, Some(coding)),
        (Encoding::Manual, Encoding::Manual) => packed(body, None),
        (Encoding::Manual, Encoding::Automatic) => match packed(body, None) {
            Flow::Empty => Flow::Empty,
            Flow::Bytes(bytes) => {
                let length = bytes.len() as u64;
                Flow::Coded(coding, Box::pin(once(async { Ok(bytes) })), Some(length))
            }
            Flow::Stream(pieces, length) | Flow::Coded(_, pieces, length) => {
                Flow::Coded(coding, pieces, length)
            }
        },
    }
}

/// The same body, unpacked while it is read.
pub(crate) fn plain(body: Flow) -> Flow {
    packed(body, None)
}

/// The body as bytes of the wanted coding.
fn packed(body: Flow, wanted: Option<Coding>) -> Flow {
    let body = match body {
        Flow::Coded(coding, pieces, length) if Some(coding) == wanted => {
            return Flow::Stream(pieces, length);
        }
        Flow::Coded(coding, pieces, _) => Flow::Stream(Box::pin(unpack(pieces, coding)), None),
        body @ (Flow::Empty | Flow::Bytes(_) | Flow::Stream(..)) => body,
    };
    let Some(coding) = wanted else { return body };
    match body {
        Flow::Bytes(bytes) if bytes.len() <= STEP_BYTES => {
            if bytes.is_empty() {
                return Flow::Bytes(bytes);
            }
            let (mut encoder, mut out) = (Encoder::new(coding.format()), Vec::new());
            encoder.push(&bytes, &mut out);
            encoder.finish(&mut out);
            Flow::Bytes(out.into())
        }
        Flow::Bytes(bytes) => {
            Flow::Stream(Box::pin(pack(Box::pin(once(async { Ok(bytes) })), coding)), None)
        }
        Flow::Stream(pieces, _) => Flow::Stream(Box::pin(pack(pieces, coding)), None),
        Flow::Empty | Flow::Coded(..) => body,
    }
}

fn unpack(pieces: Pieces, coding: Coding) -> Unpacked {
    // A file of gzip may have several members; one of Brotli has one stream.
    let members = match coding {
        Coding::Gzip => Members::Many,
        Coding::Brotli => Members::One,
    };
    let decoder = Decoder::new(coding.format(), members);
    Unpacked { pieces, decoder, input: Bytes::new(), has_more: false, is_over: false }
}

fn pack(pieces: Pieces, coding: Coding) -> Packed {
    let encoder = Some(Encoder::new(coding.format()));
    Packed { pieces, encoder, input: Bytes::new(), is_held_back: false }
}

/// Pieces, unpacked: at most [`STEP_BYTES`] each.
struct Unpacked {
    pieces: Pieces,
    decoder: Decoder,
    input: Bytes,
    /// The last step made all that it may: there may be more.
    has_more: bool,
    is_over: bool,
}

impl Stream for Unpacked {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let next = loop {
            if this.is_over {
                return Poll::Ready(None);
            }
            if this.has_more || !this.input.is_empty() {
                let mut out = Vec::new();
                match this.decoder.step(&this.input, &mut out) {
                    Ok(taken) => this.input.advance(taken),
                    Err(error) => break Err(broken(error)),
                }
                this.has_more = out.len() == STEP_BYTES;
                if !out.is_empty() {
                    out.shrink_to_fit();
                    return Poll::Ready(Some(Ok(out.into())));
                }
                continue;
            }
            match std::task::ready!(this.pieces.as_mut().poll_next(cx)) {
                Some(Ok(piece)) => this.input = piece,
                Some(Err(why)) => break Err(why),
                None => break this.decoder.end().map_err(broken),
            }
        };
        this.is_over = true;
        Poll::Ready(next.err().map(Err))
    }
}

fn broken(error: CompressionError) -> Failure {
    failure("TypeError", error.to_string())
}

/// Pieces, packed. What waits for more is sent when nothing comes for now, so that a slow writer's
/// words arrive.
struct Packed {
    pieces: Pieces,
    /// `None` after the end.
    encoder: Option<Encoder>,
    input: Bytes,
    is_held_back: bool,
}

impl Stream for Packed {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let Some(encoder) = &mut this.encoder else { return Poll::Ready(None) };
            let mut out = Vec::new();
            if !this.input.is_empty() {
                let front = this.input.split_to(this.input.len().min(STEP_BYTES));
                encoder.push(&front, &mut out);
                this.is_held_back = true;
            } else {
                match this.pieces.as_mut().poll_next(cx) {
                    Poll::Ready(Some(Ok(piece))) => this.input = piece,
                    Poll::Ready(Some(Err(why))) => {
                        this.encoder = None;
                        return Poll::Ready(Some(Err(why)));
                    }
                    Poll::Ready(None) => {
                        this.encoder.take().expect("it is there").finish(&mut out);
                    }
                    Poll::Pending if this.is_held_back => {
                        this.is_held_back = false;
                        encoder.flush(&mut out);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            if !out.is_empty() {
                out.shrink_to_fit();
                return Poll::Ready(Some(Ok(out.into())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http::HeaderValue;

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(value));
        }
        headers
    }

    fn pieces(all: &[&'static [u8]]) -> Pieces {
        let all: Vec<_> = all.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
        Box::pin(stream::iter(all))
    }

    /// All of a body whose pieces are there.
    fn read(flow: Flow) -> Result<Vec<u8>, String> {
        match flow {
            Flow::Empty => Ok(Vec::new()),
            Flow::Bytes(bytes) => Ok(bytes.to_vec()),
            Flow::Stream(pieces, _) | Flow::Coded(_, pieces, _) => {
                let all: Vec<_> = pieces.collect().now_or_never().expect("all pieces are there");
                all.into_iter()
                    .map(|piece| piece.map_err(|why| why.message))
                    .try_fold(Vec::new(), |all, piece| Ok([all, piece?.to_vec()].concat()))
            }
        }
    }

    #[test]
    fn only_one_coding_that_is_spelled_as_workerd_wants_it_counts() {
        assert_eq!(Coding::of(&headers(&["gzip"])), Some(Coding::Gzip));
        assert_eq!(Coding::of(&headers(&["br"])), Some(Coding::Brotli));
        for other in
            [&[][..], &["GZIP"], &["x-gzip"], &["gzip, br"], &["gzip", "gzip"], &["deflate"]]
        {
            assert_eq!(Coding::of(&headers(other)), None, "{other:?}");
        }
    }

    #[test]
    fn a_body_is_packed_and_unpacked_as_writer_and_reader_want() {
        use Encoding::{Automatic, Manual};
        let large: &'static [u8] = vec![7; 1_000_000].leak();
        for name in ["gzip", "br"] {
            let headers = headers(&[name]);
            let bodies: [fn(&'static [u8]) -> Flow; 2] = [
                |text| Flow::Bytes(Bytes::from_static(text)),
                |text| Flow::Stream(pieces(&[text, b"", text]), Some(2 * text.len() as u64)),
            ];
            for (body, text) in
                bodies.iter().flat_map(|body| [(body, &b"hello"[..]), (body, large)])
            {
                let expected = read(body(text)).expect("plain");
                let same = recode(body(text), &headers, Automatic, Automatic);
                assert!(read(same) == Ok(expected.clone()));
                let sent = recode(body(text), &headers, Automatic, Manual);
                assert_eq!(sent.length().is_some(), matches!(sent, Flow::Bytes(_)));
                let sent = Bytes::from(read(sent).expect("packed"));
                assert!(sent != expected);
                // What is handed on is not touched.
                let came = || recode(Flow::Bytes(sent.clone()), &headers, Manual, Automatic);
                assert_eq!(came().length(), None, "of what is read");
                let on = recode(came(), &headers, Automatic, Manual);
                assert_eq!(on.length(), Some(sent.len() as u64));
                assert!(read(on) == Ok(sent.to_vec()));
                // What is read, or sent with other headers, is unpacked.
                assert!(read(plain(came())) == Ok(expected.clone()));
                let bare = recode(came(), &HeaderMap::new(), Automatic, Manual);
                assert!(read(bare) == Ok(expected));
            }
        }
    }

    #[test]
    fn damaged_bodies_end_in_an_error_and_then_end() {
        let coded = Flow::Coded(Coding::Gzip, pieces(&[b"not gzip", b"more"]), Some(12));
        let Flow::Stream(unpacked, None) = plain(coded) else { panic!("not a stream") };
        let all: Vec<_> = unpacked.collect().now_or_never().expect("all is there");
        let messages: Vec<_> = all.into_iter().map(|it| it.map_err(|why| why.message)).collect();
        assert_eq!(messages, [Err("Gzip decompression failed.".to_owned())]);
        let cut = Flow::Coded(Coding::Brotli, pieces(&[]), Some(0));
        let ended = read(plain(cut));
        assert_eq!(ended, Err("Brotli compressed stream ended prematurely.".to_owned()));
    }

    #[test]
    fn what_a_slow_writer_wrote_is_sent_while_it_rests() {
        let slow = stream::iter([Ok(Bytes::from_static(b"first"))]).chain(stream::pending());
        let sent = packed(Flow::Stream(Box::pin(slow), None), Some(Coding::Gzip));
        let Flow::Stream(mut sent, _) = sent else { panic!("not a stream") };
        let mut all = Vec::new();
        while let Some(Some(piece)) = sent.next().now_or_never() {
            all.extend_from_slice(&piece.expect("a piece"));
        }
        let (mut decoder, mut out) = (Decoder::new(Format::Gzip, Members::One), Vec::new());
        decoder.step(&all, &mut out).expect("good bytes");
        assert_eq!(out, b"first");
    }
}
