//! Durable Object classes over the life of a script: the migrations of the wrangler file, played
//! from the first, give each class the namespace key under which its cells lie in the bucket.
//!
//! Invariant: the key of a class is fixed by the migration that creates it. A rename keeps it; a
//! class that takes a name which was used before gets another one, so that it starts empty.

use std::collections::BTreeMap;

use super::Problem;
use super::tree::Position;

/// One entry of `migrations`.
#[derive(Clone, Debug)]
pub(crate) struct Migration {
    pub(crate) at: Position,
    pub(crate) tag: String,
    /// Classes that asked for the key-value backend: they get SQLite too, which can do all of it.
    pub(crate) new_classes: Vec<String>,
    pub(crate) new_sqlite_classes: Vec<String>,
    pub(crate) renamed_classes: Vec<(String, String)>,
    pub(crate) deleted_classes: Vec<String>,
}

/// What the migrations come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes {
    /// Namespace key of each class that exists, by its name now.
    pub(crate) namespaces: BTreeMap<String, String>,
    /// Keys of the classes that were deleted.
    pub(crate) deleted: Vec<String>,
    /// The last tag.
    pub(crate) tag: Option<String>,
    /// Classes of `new_classes` that exist.
    pub(crate) key_value: Vec<String>,
}

/// Plays the migrations of the script called `script`.
///
/// # Errors
/// Each step that does not fit what the steps before it left.
pub(crate) fn play(script: &str, migrations: &[Migration]) -> Result<Classes, Vec<Problem>> {
    let mut classes = Classes::default();
    let mut uses: BTreeMap<String, u32> = BTreeMap::new();
    let mut problems = Vec::new();
    let mut tags: Vec<&str> = Vec::new();
    for migration in migrations {
        let Migration {
            at,
            tag,
            new_classes,
            new_sqlite_classes,
            renamed_classes,
            deleted_classes,
        } = migration;
        let mut fault =
            |text: String| problems.push(Problem::at(*at, format!("migration {tag:?}: {text}")));
        if tags.contains(&tag.as_str()) {
            fault("this tag is given twice".to_owned());
        }
        tags.push(tag);
        for class in deleted_classes {
            match classes.namespaces.remove(class) {
                Some(namespace) => classes.deleted.push(namespace),
                None => fault(format!(
                    "deleted_classes names {class:?}, and no migration before it creates that class"
                )),
            }
            classes.key_value.retain(|other| other != class);
        }
        for (from, to) in renamed_classes {
            match classes.namespaces.remove(from) {
                None => fault(format!(
                    "renamed_classes names {from:?}, and no migration before it creates that class"
                )),
                Some(_) if classes.namespaces.contains_key(to) => {
                    fault(format!("{from:?} cannot become {to:?}: that class exists"))
                }
                Some(namespace) => {
                    classes.namespaces.insert(to.clone(), namespace);
                    for class in classes.key_value.iter_mut().filter(|class| *class == from) {
                        class.clone_from(to);
                    }
                }
            }
        }
        for class in new_sqlite_classes.iter().chain(new_classes) {
            if classes.namespaces.contains_key(class) {
                fault(format!("the new class {class:?} exists already"));
                continue;
            }
            let used = uses.entry(class.clone()).or_insert(0);
            *used += 1;
            match namespace(script, class, *used) {
                Some(key) => _ = classes.namespaces.insert(class.clone(), key),
                None => fault(format!("the name of the class {class:?} is empty or too long")),
            }
        }
        classes.key_value.extend(new_classes.iter().cloned());
    }
    classes.tag = tags.last().map(|&tag| tag.to_owned());
    if problems.is_empty() { Ok(classes) } else { Err(problems) }
}

/// Key of the `nth` class (from 1) of that name in a script: `<script>.<class>`, and
/// `<script>.<class>.<nth>` from the second on. A byte of the class that a key may not hold is
/// written `-` and two hexadecimal digits; a dot and a `-` are such bytes, so no two classes meet.
///
/// `None` when it would not be a good key.
pub(crate) fn namespace(script: &str, class: &str, nth: u32) -> Option<String> {
    use std::fmt::Write as _;
    if class.is_empty() {
        return None;
    }
    let mut key = format!("{script}.");
    for byte in class.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') {
            key.push(char::from(byte));
        } else {
            let _ = write!(key, "-{byte:02x}");
        }
    }
    if nth > 1 {
        let _ = write!(key, ".{nth}");
    }
    // The core's own rule, asked with any id.
    celld_core::cell::CellId::new(&key, &"0".repeat(64)).map(|_| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tag: &str) -> Migration {
        Migration {
            at: Position::default(),
            tag: tag.to_owned(),
            new_classes: Vec::new(),
            new_sqlite_classes: Vec::new(),
            renamed_classes: Vec::new(),
            deleted_classes: Vec::new(),
        }
    }

    fn new(tag: &str, class: &str) -> Migration {
        Migration { new_sqlite_classes: vec![class.to_owned()], ..step(tag) }
    }

    fn rename(tag: &str, from: &str, to: &str) -> Migration {
        Migration { renamed_classes: vec![(from.to_owned(), to.to_owned())], ..step(tag) }
    }

    fn delete(tag: &str, class: &str) -> Migration {
        Migration { deleted_classes: vec![class.to_owned()], ..step(tag) }
    }

    #[test]
    fn a_rename_keeps_the_key() {
        let classes = play("app", &[new("v1", "A"), rename("v2", "A", "B")]).expect("good");
        assert_eq!(classes.namespaces, BTreeMap::from([("B".to_owned(), "app.A".to_owned())]));
        assert_eq!(classes.tag.as_deref(), Some("v2"));
    }

    #[test]
    fn a_name_that_was_used_before_never_meets_old_data() {
        let again =
            play("app", &[new("v1", "A"), delete("v2", "A"), new("v3", "A")]).expect("good");
        assert_eq!(
            (again.namespaces["A"].as_str(), again.deleted),
            ("app.A.2", vec!["app.A".to_owned()])
        );
        let freed =
            play("app", &[new("v1", "A"), rename("v2", "A", "B"), new("v3", "A")]).expect("good");
        assert_eq!(
            (freed.namespaces["A"].as_str(), freed.namespaces["B"].as_str()),
            ("app.A.2", "app.A")
        );
    }

    #[test]
    fn a_step_that_does_not_fit_is_refused() {
        for (steps, text) in [
            (vec![rename("v1", "A", "B")], "renamed_classes names \"A\""),
            (vec![delete("v1", "A")], "deleted_classes names \"A\""),
            (vec![new("v1", "A"), new("v2", "A")], "exists already"),
            (vec![new("v1", "A"), new("v1", "B")], "tag is given twice"),
            (vec![new("v1", "A"), new("v2", "B"), rename("v3", "A", "B")], "cannot become"),
            (vec![new("v1", "")], "empty"),
        ] {
            let problems = play("app", &steps).expect_err(text);
            assert!(problems[0].to_string().contains(text), "{problems:?}");
        }
    }

    #[test]
    fn a_class_of_the_old_backend_is_followed_through_renames() {
        let first = Migration { new_classes: vec!["A".to_owned()], ..step("v1") };
        let classes = play("app", &[first, rename("v2", "A", "B")]).expect("good");
        assert_eq!(classes.key_value, ["B"]);
    }

    #[test]
    fn odd_class_names_get_keys_of_their_own() {
        assert_eq!(namespace("app", "$A_1", 1).as_deref(), Some("app.$A_1"));
        assert_eq!(namespace("app", "Größe", 1).as_deref(), Some("app.Gr-c3-b6-c3-9fe"));
        assert_ne!(namespace("app", "A.2", 1), namespace("app", "A", 2));
        assert_ne!(namespace("app", "-c3", 1), namespace("app", "\u{c3}", 1));
        assert_eq!(namespace("app", &"A".repeat(200), 1), None);
    }
}
