//! Listings: a [`Page`] is in byte order, whatever order the store lists in.
//!
//! S3 promises byte order; stores on top of a tree list `a`, `a/b`, `a!`. There, neither "behind
//! this key" nor "this page ends here" means what it means to us. So only a store that is known to
//! list in byte order is asked to go on behind a key. Of any other, a listing that does not fit
//! into one answer is read to its end, from token to token, and the page is made of the smallest
//! keys behind the wanted one. That costs requests and no memory, and only with more than 1,000
//! keys below one prefix.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use http::Response;
use hyper::body::Incoming;

use super::Call;
use super::answer::Failure;
use super::attempt::whole;
use super::dialect::{From, Listing};
use super::metrics::Verb;
use crate::error::StoreError;
use crate::{Entry, PAGE_ENTRIES_MAX, Page, key};

/// 1,000 keys of 1,024 bytes, each sign in three, and what stands around them.
const LISTING_BYTES_MAX: u64 = 8 << 20;
/// Answers of one listing that is read to its end: a million keys.
const ANSWERS_MAX: usize = 1_000;

impl Call<'_> {
    /// The key of the call is the prefix.
    pub async fn list(&self, after: Option<&str>) -> Result<Page, StoreError> {
        self.check(Verb::List)?;
        let fault = |failure: Failure| failure.into_error(self.key);
        let in_order = &self.remote.in_byte_order;
        let after = after.filter(|after| !after.is_empty());
        if in_order.load(Ordering::Relaxed) {
            let from = after.map_or(From::Start, From::After);
            let listing = self.listing(from).await.map_err(fault)?;
            match in_byte_order(listing, after) {
                Ok(page) => return Ok(page),
                // Whoever said so was wrong.
                Err(OutOfOrder) => in_order.store(false, Ordering::Relaxed),
            }
        }
        self.list_all(after).await.map_err(fault)
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

struct OutOfOrder;

/// The page that one answer is, if it is in order, and all of it behind `after`.
fn in_byte_order(listing: Listing, after: Option<&str>) -> Result<Page, OutOfOrder> {
    let mut last = after.unwrap_or_default();
    for Entry { key, .. } in &listing.entries {
        // No key is empty.
        if key.as_str() <= last {
            return Err(OutOfOrder);
        }
        last = key;
    }
    Ok(Page { more: listing.next.is_some(), entries: listing.entries })
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
    fn an_answer_that_is_not_in_order_or_not_behind_the_key_is_noticed() {
        let page = |keys: &[&str], after| {
            let next = Some("token".to_owned());
            in_byte_order(Listing { entries: entries(keys), next }, after)
        };
        assert!(page(&["a", "a!", "a/b"], None).is_ok_and(|page| page.more));
        assert!(page(&["a", "a/b", "a!"], None).is_err());
        assert!(page(&["a", "a"], None).is_err());
        assert!(page(&["a", "b"], Some("a")).is_err());
        assert!(page(&["b", "c"], Some("a")).is_ok());
    }
}
