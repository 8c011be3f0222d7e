//! Deployments on a bucket that is a directory: written, read back, damaged, raced.

use celld_s3::Bucket;

use super::*;

fn manifest(version: &str, modules: &[(&str, &[u8])]) -> Manifest {
    let module = |&(name, bytes): &(&str, &[u8])| ModuleRef {
        name: name.to_owned(),
        kind: ModuleKind::EsModule,
        content: Blob::of(bytes),
        source_map: Some(Blob::of(b"map")),
    };
    Manifest {
        format: FORMAT,
        version: version.to_owned(),
        created_ms: 1,
        name: "app".to_owned(),
        main: "index.js".to_owned(),
        modules: modules.iter().map(module).collect(),
        vars: serde_json::Map::from_iter([("N".to_owned(), 1.into())]),
        durable_objects: vec![DurableObject {
            binding: "C".to_owned(),
            class_name: "Counter".to_owned(),
            namespace: "app.Counter".to_owned(),
        }],
        classes: BTreeMap::from([("Counter".to_owned(), "app.Counter".to_owned())]),
        deleted: Vec::new(),
        migration_tag: Some("v1".to_owned()),
        compatibility_date: "2026-01-31".to_owned(),
        compatibility_flags: Vec::new(),
        crons: Vec::new(),
        limits: Limits::default(),
    }
}

const MODULES: &[(&str, &[u8])] = &[("index.js", b"import './a.js'"), ("a.js", b"1")];

/// Runs `test` on a bucket that serves version `v1`.
fn on_bucket<F: Future<Output = ()>>(test: impl FnOnce(Bucket) -> F) {
    let dir = tempfile::tempdir().expect("a directory");
    let bucket = Bucket::open_dir(dir.path()).expect("a bucket");
    celld_rt::block_on(async {
        assert_eq!(load_current(&bucket).await.expect("an empty bucket"), None);
        for (_, bytes) in MODULES {
            assert!(put_blob(&bucket, &Bytes::from_static(bytes)).await.expect("written"));
        }
        put_blob(&bucket, &Bytes::from_static(b"map")).await.expect("written");
        put_manifest(&bucket, &manifest("v1", MODULES)).await.expect("written");
        move_current(&bucket, None, "v1").await.expect("moved");
        test(bucket).await;
    });
}

/// The version that is served, with all its modules.
async fn load_current(bucket: &Bucket) -> Result<Option<Deployment>, DeployError> {
    match read_current(bucket).await? {
        Some((current, _)) => load(bucket, &current.version).await.map(Some),
        None => Ok(None),
    }
}

/// What the current deployment's error says.
async fn fault(bucket: &Bucket) -> String {
    load_current(bucket).await.expect_err("a fault").to_string()
}

#[test]
fn a_version_is_read_as_it_was_written() {
    on_bucket(|bucket| async move {
        let read = load_current(&bucket).await.expect("good").expect("deployed");
        assert_eq!(read.manifest, manifest("v1", MODULES));
        assert_eq!(read.modules.len(), 2);
        assert_eq!(
            (&read.modules[1].bytes[..], read.modules[1].source_map.as_deref()),
            (b"1" as &[u8], Some(b"map" as &[u8]))
        );
    });
}

#[test]
fn what_is_written_once_stays() {
    on_bucket(|bucket| async move {
        assert!(!put_blob(&bucket, &Bytes::from_static(b"1")).await.expect("there already"));
        put_manifest(&bucket, &manifest("v1", MODULES)).await.expect("the same bytes");
        let other = Manifest { created_ms: 2, ..manifest("v1", MODULES) };
        let text = put_manifest(&bucket, &other).await.expect_err("other bytes").to_string();
        assert!(text.contains("versions/v1.json") && text.contains("other bytes"), "{text}");
    });
}

#[test]
fn of_two_who_deploy_at_once_one_wins() {
    on_bucket(|bucket| async move {
        let (_, etag) = read_current(&bucket).await.expect("good").expect("deployed");
        move_current(&bucket, Some(etag.clone()), "v2").await.expect("the first");
        match move_current(&bucket, Some(etag), "v3").await {
            Err(DeployError::Raced { version }) => assert_eq!(version, "v2"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(move_current(&bucket, None, "v4").await, Err(DeployError::Raced { .. })));
    });
}

#[test]
fn what_is_damaged_or_missing_is_named() {
    on_bucket(|bucket| async move {
        let module = Blob::of(b"1").key();
        bucket.put(&module, Bytes::from_static(b"2")).await.expect("put");
        let text = fault(&bucket).await;
        assert!(text.contains(&module) && text.contains("does not match its name"), "{text}");
        bucket.put(&module, Bytes::from_static(b"11")).await.expect("put");
        assert!(fault(&bucket).await.contains("1 are the most"));
        bucket.delete(std::slice::from_ref(&module)).await.expect("deleted");
        assert!(fault(&bucket).await.contains("not in the bucket"));
        for (record, part) in [
            ("", "deploy/current.json cannot be used"),
            ("{\"format\":2,\"new\":1}", "its format is 2, and this version of celld knows 1"),
            ("{\"format\":1,\"version\":\"../x\",\"nonce\":\"\"}", "is not the id of a version"),
            (
                "{\"format\":1,\"version\":\"v9\",\"nonce\":\"\"}",
                "versions/v9.json cannot be used: it is not in the bucket",
            ),
        ] {
            bucket.put(CURRENT_KEY, Bytes::from_static(record.as_bytes())).await.expect("put");
            let text = fault(&bucket).await;
            assert!(text.contains(part), "{text}");
        }
        bucket.put(CURRENT_KEY, vec![b' '; 5_000].into()).await.expect("put");
        assert!(fault(&bucket).await.contains("5000 bytes"));
    });
}

#[test]
fn a_manifest_that_no_node_could_serve_is_refused() {
    let good = manifest("v1", MODULES);
    let object = good.durable_objects[0].clone();
    let blob = Blob { sha256: "x".to_owned(), size: 1 };
    let huge = Blob { size: VERSION_BYTES_MAX, ..Blob::of(b"1") };
    let with = |content: Blob| vec![ModuleRef { content, ..good.modules[0].clone() }];
    for (bad, part) in [
        (Manifest { version: "a/b".to_owned(), ..good.clone() }, "id of a version"),
        (Manifest { main: "other.js".to_owned(), ..good.clone() }, "not among the modules"),
        (
            Manifest {
                modules: vec![good.modules[0].clone(), good.modules[0].clone()],
                ..good.clone()
            },
            "there twice",
        ),
        (Manifest { modules: with(blob), ..good.clone() }, "not 64 hexadecimal digits"),
        (Manifest { modules: with(huge), ..good.clone() }, "are more than"),
        (
            Manifest {
                durable_objects: vec![DurableObject {
                    namespace: "a/b".to_owned(),
                    ..object.clone()
                }],
                ..good.clone()
            },
            "key of a namespace",
        ),
        (
            Manifest {
                durable_objects: vec![DurableObject { binding: "N".to_owned(), ..object }],
                ..good.clone()
            },
            "two bindings are called \"N\"",
        ),
    ] {
        let text = bad.encode().expect_err(part).to_string();
        assert!(text.contains(part), "{text}");
        let json = serde_json::to_vec(&bad).expect("JSON");
        assert!(Manifest::decode("key", &json).is_err(), "{part}");
    }
    let encoded = good.encode().expect("good");
    assert_eq!(Manifest::decode("key", &encoded).expect("good"), good);
}

#[test]
fn a_class_keeps_its_key_and_goes_by_a_migration() {
    let old = manifest("v1", MODULES);
    let with = |classes: &[(&str, &str)], deleted: &[&str]| Manifest {
        classes: classes.iter().map(|&(class, key)| (class.to_owned(), key.to_owned())).collect(),
        deleted: deleted.iter().map(|&key| key.to_owned()).collect(),
        ..manifest("v2", MODULES)
    };
    for (new, may_follow) in [
        (with(&[("Counter", "app.Counter")], &[]), true),
        (with(&[("Renamed", "app.Counter")], &[]), true),
        (with(&[], &["app.Counter"]), true),
        (with(&[("Renamed", "app.Counter"), ("Counter", "app.Counter.2")], &[]), true),
        (with(&[("Counter", "app.Counter.2")], &["app.Counter"]), true),
        (with(&[], &[]), false),
        (with(&[("Counter", "app.Counter.2")], &[]), false),
        (with(&[("Renamed", "app.Renamed")], &[]), false),
    ] {
        assert_eq!(new.follows(&old).is_ok(), may_follow, "{:?}", new.classes);
    }
    let other = Manifest { name: "other".to_owned(), ..with(&[], &[]) };
    assert!(other.follows(&old).is_ok());
}
