//! Ids of Durable Objects, computed as workerd computes them.
//!
//! key = SHA-256(namespace); an id is 32 bytes: 16 that say which object, then the first 16 of
//! HMAC-SHA-256(key, those 16). Of a name the first 16 are the first of HMAC-SHA-256(key, name).
//! So an id of another namespace does not pass the check.
//! Source: workerd, `server/actor-id-impl.c++`; checked against ids that workerd made.

use std::cell::RefCell;
use std::collections::HashMap;

use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};
use v8::{FunctionCallbackArguments, PinScope, ReturnValue};

use crate::convert;
use crate::op;
use crate::ops::Op;
use crate::state::RealmState;

/// The native functions of this file.
pub const OPS: &[Op] =
    &[op!("id_of_name", id_of_name), op!("id_unique", id_unique), op!("id_check", id_check)];

/// Bytes that say which object; as many follow that prove the namespace.
const HALF: usize = 16;

/// Why a text is no id. The texts are workerd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not 64 hexadecimal digits.
    #[error("Invalid Durable Object ID: must be 64 hex digits")]
    Malformed,
    /// It belongs to another namespace, or was made up.
    #[error("Durable Object ID is not valid for this namespace.")]
    Foreign,
}

/// Makes and checks the ids of one namespace.
pub struct IdFactory {
    key: hmac::Key,
}

impl IdFactory {
    /// For the namespace with this key.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        let key = digest::digest(&digest::SHA256, namespace.as_bytes());
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()) }
    }

    /// The id of a name, in 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn of_name(&self, name: &str) -> String {
        let tag = hmac::sign(&self.key, name.as_bytes());
        self.complete(&tag.as_ref()[..HALF])
    }

    /// The id that begins with these random bytes.
    #[must_use]
    pub fn of_random(&self, random: [u8; HALF]) -> String {
        self.complete(&random)
    }

    /// The id that `text` spells, in lower case.
    ///
    /// # Errors
    /// Not an id of this namespace.
    pub fn check(&self, text: &str) -> Result<String, IdError> {
        let bytes = hex::decode(text).map_err(|_| IdError::Malformed)?;
        if bytes.len() != 2 * HALF {
            return Err(IdError::Malformed);
        }
        let id = self.complete(&bytes[..HALF]);
        if id == text.to_ascii_lowercase() { Ok(id) } else { Err(IdError::Foreign) }
    }

    fn complete(&self, first: &[u8]) -> String {
        let proof = hmac::sign(&self.key, first);
        let mut id = [0_u8; 2 * HALF];
        id[..HALF].copy_from_slice(first);
        id[HALF..].copy_from_slice(&proof.as_ref()[..HALF]);
        hex::encode(id)
    }
}

/// Factories of the namespaces that a realm has used.
#[derive(Default)]
struct Factories(RefCell<HashMap<String, std::rc::Rc<IdFactory>>>);

/// The factory of the namespace that the first argument names.
fn factory(
    scope: &mut PinScope,
    args: &FunctionCallbackArguments,
) -> Option<std::rc::Rc<IdFactory>> {
    let namespace = convert::to_string(scope, args.get(0))?;
    let factories = RealmState::get(scope).of::<Factories>();
    let mut known = factories.0.borrow_mut();
    if let Some(factory) = known.get(&namespace) {
        return Some(factory.clone());
    }
    let factory = std::rc::Rc::new(IdFactory::new(&namespace));
    known.insert(namespace, factory.clone());
    Some(factory)
}

fn answer(scope: &mut PinScope, mut rv: ReturnValue, id: &str) {
    rv.set(convert::string(scope, id).into());
}

/// `id_of_name(namespace, name) -> hex`
fn id_of_name(scope: &mut PinScope, args: FunctionCallbackArguments, rv: ReturnValue) {
    let Some(factory) = factory(scope, &args) else { return };
    let Some(name) = convert::to_string(scope, args.get(1)) else { return };
    answer(scope, rv, &factory.of_name(&name));
}

/// `id_unique(namespace) -> hex`
fn id_unique(scope: &mut PinScope, args: FunctionCallbackArguments, rv: ReturnValue) {
    let Some(factory) = factory(scope, &args) else { return };
    let mut random = [0; HALF];
    if SystemRandom::new().fill(&mut random).is_err() {
        return convert::throw_error(scope, "newUniqueId(): the system has no random bytes");
    }
    answer(scope, rv, &factory.of_random(random));
}

/// `id_check(namespace, text) -> hex`; throws a `TypeError` for what is no id of the namespace.
fn id_check(scope: &mut PinScope, args: FunctionCallbackArguments, rv: ReturnValue) {
    let Some(factory) = factory(scope, &args) else { return };
    let Some(text) = convert::to_string(scope, args.get(1)) else { return };
    match factory.check(&text) {
        Ok(id) => answer(scope, rv, &id),
        Err(error) => convert::throw_type_error(scope, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that workerd 1.20261117 made for the unique key `nskey`.
    #[test]
    fn ids_of_names_are_those_of_workerd() {
        let factory = IdFactory::new("nskey");
        for (name, id) in [
            ("hello", "e2821e73c1b6f96bbf0770986ff34424cd80f49a1419a46e2e9b358c01668ddb"),
            ("", "c80c5e8b0c2f4db871939764128859e66127a52913d62428e5826241e6f9a87a"),
            ("bob", "eef8bd2a8825e69e0f8d1c83f65893d9764cfd4b83735a3166595ad35989f36a"),
        ] {
            assert_eq!(factory.of_name(name), id);
            assert_eq!(factory.check(id).as_deref(), Ok(id));
            assert_eq!(factory.check(&id.to_ascii_uppercase()).as_deref(), Ok(id));
        }
    }

    #[test]
    fn what_is_no_id_of_the_namespace_is_refused() {
        let factory = IdFactory::new("nskey");
        let unique = factory.of_random([7; HALF]);
        assert_eq!(factory.check(&unique).as_deref(), Ok(unique.as_str()));
        assert_eq!(IdFactory::new("other").check(&unique), Err(IdError::Foreign));
        assert_eq!(factory.check(&"0".repeat(64)), Err(IdError::Foreign));
        assert_eq!(factory.check(&"0".repeat(63)), Err(IdError::Malformed));
        assert_eq!(factory.check(&"0".repeat(62)), Err(IdError::Malformed));
        assert_eq!(factory.check(&"g".repeat(64)), Err(IdError::Malformed));
        assert_eq!(factory.check("é"), Err(IdError::Malformed));
    }
}
