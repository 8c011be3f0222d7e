//! Listings: a [`Page`] is in byte order, whatever order the store lists in.
//!
//! S3 promises byte order; stores on top of a tree list `a`, `a/b`, `a!`. There, neither "behind
//! this key" nor "this page ends here" means what it means to us. So only a store that is known to
//! list in byte order is asked to go on behind a key. Of any other, a listing that does not fit
//! into one answer is read to its end, from token to token, and the page is made of the smallest
//! keys behind the wanted one. That costs requests and no memory, and only with more than 1,000
//! keys below one prefix.
//!
//! Listings of Azure cannot begin behind a key. There the token of a page is kept for whoever asks
//! for the next one; without it, what lies before is read again.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use http::Response;
use hyper::body::Incoming;

use super::Call;
use super::answer::Failure;
use super::attempt::whole;
use super::dialect::{Code, From, Listing};
use super::metrics::Verb;
use crate::error::StoreError;
use crate::{Entry, PAGE_ENTRIES_MAX, Page, key};

/// 1,000 keys of 1,024 bytes, each sign in three, and what stands around them.
const LISTING_BYTES_MAX: u64 = 8 << 20;
/// Answers of one listing that is read to its end: a million keys.
const ANSWERS_MAX: usize = 1_000;
/// Listings under way whose tokens are kept.
pub(super) const RESUMES_MAX: usize = 64;

impl Call<'_> {
    /// The key of the call is the prefix.
    pub async fn list(&self, after: Option<&str>) -> Result<Page, StoreError> {
        self.check(Verb::List)?;
        let fault = |failure: Failure| failure.into_error(self.key);
        let in_order = &self.remote.in_byte_order;
        let after = after.filter(|after| !after.is_empty());
        if in_order.load(Ordering::Relaxed) {
            match self.list_in_order(after).await.map_err(fault)? {
                Ok(page) => return Ok(page),
                // Whoever said so was wrong.
                Err(Misfit::OutOfOrder) => in_order.store(false, Ordering::Relaxed),
                Err(Misfit::Undecided) => {}
            }
        }
        self.list_all(after).await.map_err(fault)
    }

    /// Looks at how the store lists what is below the key, which should tell orders apart.
    pub async fn learn_order(&self) -> Result<(), StoreError> {
        let listing = self.listing(From::Start).await;
        let listing = listing.map_err(|failure| failure.into_error(self.key))?;
        // One key, or none, is in any order.
        let tells = listing.entries.len() > 1 && listing.next.is_none();
        if tells && listing.entries.is_sorted_by(|a, b| a.key < b.key) {
            self.remote.trust_list_order();
        }
        Ok(())
    }

    /// Answers are pages, but for what lies before `after` where none can begin behind a key.
    async fn list_in_order(&self, after: Option<&str>) -> Result<Result<Page, Misfit>, Failure> {
        let dialect = &self.remote.dialect;
        let begins_behind = after.is_none() || dialect.lists_behind_keys();
        let token = after.filter(|_| !begins_behind).and_then(|after| self.resumed(after));
        let mut order = Order { last: None, skip_to: after };
        let mut listing = match (after, &token) {
            (Some(key), _) if begins_behind => self.listing(From::After(key)).await?,
            (_, Some(token)) => match self.listing(From::Token(token)).await {
                // It is only a hint, and the store may have forgotten it.
                Err(failure) if failure.code() == Some(Code::Other) => {
                    self.listing(From::Start).await?
                }
                listing => listing?,
            },
            (_, None) => self.listing(From::Start).await?,
        };
        for _ in 0..ANSWERS_MAX {
            let Ok(entries) = order.take(listing.entries) else {
                return Ok(Err(Misfit::OutOfOrder));
            };
            let Some(token) = listing.next else { return Ok(Ok(Page { entries, more: false })) };
            let Some(last) = entries.last() else {
                listing = self.listing(From::Token(&token)).await?;
                continue;
            };
            if !dialect.lists_in_byte_order() && !is_ordered_anyhow(&last.key) {
                return Ok(Err(Misfit::Undecided));
            }
            if !dialect.lists_behind_keys() {
                self.resume_at(&last.key, token);
            }
            return Ok(Ok(Page { entries, more: true }));
        }
        Err(Failure::Broken("a listing has no end".to_owned()))
    }

    fn resumed(&self, after: &str) -> Option<String> {
        let mut resumes = self.remote.resumes.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |resume: &Resume| resume.prefix == self.key && resume.after == after;
        let place = resumes.iter().position(wanted)?;
        resumes.remove(place).map(|resume| resume.token)
    }

    fn resume_at(&self, after: &str, token: String) {
        let (prefix, after) = (self.key.to_owned(), after.to_owned());
        let mut resumes = self.remote.resumes.lock().unwrap_or_else(PoisonError::into_inner);
        if resumes.len() == RESUMES_MAX {
            resumes.pop_front();
        }
        resumes.push_back(Resume { prefix, after, token });
    }

    async fn list_all(&self, after: Option<&str>) -> Result<Page, Failure> {
        let mut least = Least { after, kept: BTreeMap::new(), more: false };
        let mut listing = self.listing(From::Start).await?;
        for _ in 0..ANSWERS_MAX {
            for entry in listing.entries {
                least.offer(entry);
            }
            let Some(token) = listing.next else { return Ok(least.page()) };
            listing = self.listing(From::Token(&token)).await?;
            if listing.next.as_ref() == Some(&token) {
                return Err(Failure::Broken("a listing goes round in circles".to_owned()));
            }
        }
        Err(Failure::Broken("a listing has no end".to_owned()))
    }

    async fn listing(&self, from: From<'_>) -> Result<Listing, Failure> {
        let dialect = &self.remote.dialect;
        let read = async |response: Response<Incoming>| {
            let answer =
                whole(response, LISTING_BYTES_MAX).await.map_err(|failure| match failure {
                    Failure::TooLong(_) => Failure::Malformed("a listing without end".to_owned()),
                    other => other,
                })?;
            let listing = dialect.listing(&answer.body);
            let mut listing =
                listing.map_err(|fault| Failure::Malformed(format!("a listing: {fault}")))?;
            if listing.entries.iter().any(|entry| !entry.key.starts_with(self.key)) {
                return Err(Failure::Broken("a listing has keys of another prefix".to_owned()));
            }
            // What others put there and none of ours can be: directories' placeholders.
            listing.entries.retain(|entry| key::check(&entry.key).is_ok());
            Ok(listing)
        };
        self.repeated(Verb::List, || dialect.list(self.key, from), read).await
    }
}

/// Where a listing may go on, of a store whose listings cannot begin behind a key.
pub(super) struct Resume {
    prefix: String,
    /// The last key of the page before.
    after: String,
    token: String,
}

/// Why an answer is no page.
#[derive(Debug, PartialEq, Eq)]
enum Misfit {
    OutOfOrder,
    /// Byte order, and that of UTF-16, may differ behind its last key.
    Undecided,
}

/// Keys come in order, those up to `skip_to` are left out.
struct Order<'a> {
    last: Option<String>,
    skip_to: Option<&'a str>,
}

impl Order<'_> {
    fn take(&mut self, entries: Vec<Entry>) -> Result<Vec<Entry>, Misfit> {
        let mut last = self.last.as_deref();
        for Entry { key, .. } in &entries {
            if last.is_some_and(|last| key.as_str() <= last) {
                return Err(Misfit::OutOfOrder);
            }
            last = Some(key);
        }
        self.last = last.map(ToOwned::to_owned);
        let is_behind =
            |entry: &Entry| self.skip_to.is_none_or(|skip_to| entry.key.as_str() > skip_to);
        Ok(entries.into_iter().filter(is_behind).collect())
    }
}

/// Whether all that is greater in the order of UTF-16, which some stores compare by, is greater in
/// byte order, too. The orders differ where signs above U+FFFF meet those from U+E000 on.
fn is_ordered_anyhow(key: &str) -> bool {
    key.chars().all(|sign| sign < '\u{e000}')
}

/// The smallest keys of a listing.
struct Least<'a> {
    after: Option<&'a str>,
    kept: BTreeMap<String, u64>,
    more: bool,
}

impl Least<'_> {
    fn offer(&mut self, entry: Entry) {
        if self.after.is_some_and(|after| entry.key.as_str() <= after) {
            return;
        }
        self.kept.insert(entry.key, entry.size);
        if self.kept.len() > PAGE_ENTRIES_MAX {
            self.kept.pop_last();
            self.more = true;
        }
    }

    fn page(self) -> Page {
        let entries = self.kept.into_iter().map(|(key, size)| Entry { key, size }).collect();
        Page { entries, more: self.more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: &[&str]) -> Vec<Entry> {
        keys.iter().map(|key| Entry { key: (*key).to_owned(), size: 1 }).collect()
    }

    #[test]
    fn the_smallest_keys_behind_one_are_kept_whatever_their_order() {
        let mut keys: Vec<String> = (0..3_000).map(|n| format!("k{n:04}")).collect();
        keys.reverse();
        let mut least = Least { after: Some("k0999"), kept: BTreeMap::new(), more: false };
        keys.iter().for_each(|key| least.offer(Entry { key: key.clone(), size: 0 }));
        let page = least.page();
        assert_eq!(page.entries.len(), PAGE_ENTRIES_MAX);
        assert_eq!((page.entries[0].key.as_str(), page.more), ("k1000", true));
        assert_eq!(page.entries[999].key, "k1999");
        let mut least = Least { after: None, kept: BTreeMap::new(), more: false };
        entries(&["a/b", "a", "a!"]).into_iter().for_each(|entry| least.offer(entry));
        let page = least.page();
        assert_eq!((page.entries, page.more), (entries(&["a", "a!", "a/b"]), false));
    }

    #[test]
    fn answers_that_are_not_in_order_are_noticed_and_what_is_before_is_left_out() {
        let take = |answers: &[&[&str]], skip_to| {
            let mut order = Order { last: None, skip_to };
            answers.iter().map(|keys| order.take(entries(keys))).collect::<Result<Vec<_>, _>>()
        };
        let page = |keys: &[&str]| entries(keys);
        assert_eq!(
            take(&[&["a", "a!"], &["a/b"]], None),
            Ok(vec![page(&["a", "a!"]), page(&["a/b"])])
        );
        assert_eq!(take(&[&["a", "b"], &["c"]], Some("b")), Ok(vec![page(&[]), page(&["c"])]));
        for answers in [&[&["a", "a/b", "a!"][..]][..], &[&["a", "a"]], &[&["b"], &["a"]]] {
            assert_eq!(take(answers, None), Err(Misfit::OutOfOrder), "{answers:?}");
            assert_eq!(take(answers, Some("a")), Err(Misfit::OutOfOrder), "{answers:?}");
        }
    }

    #[test]
    fn orders_agree_behind_keys_of_common_signs() {
        for (key, anyhow) in
            [("a/ä/日本", true), ("a\u{d7ff}", true), ("\u{e000}", false), ("🦀", false)]
        {
            assert_eq!(is_ordered_anyhow(key), anyhow, "{key:?}");
        }
        let by_units = |a: &str, b: &str| a.encode_utf16().cmp(b.encode_utf16());
        assert_eq!(by_units("🦀", "\u{ffee}"), std::cmp::Ordering::Less);
        assert_eq!("🦀".cmp("\u{ffee}"), std::cmp::Ordering::Greater);
    }
}
