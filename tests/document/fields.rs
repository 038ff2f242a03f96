//! The table of fields against the CRD's schema: no field of a document is without an effect, and what it
//! says of a restart is what etcd is restarted for.

use std::collections::BTreeMap;

use etcd_operator::api::{EtcdClusterSpec, convert, crd};
use etcd_operator::document::compare::{differences, spelled_out};
use etcd_operator::plan::Hold;
use etcd_operator::plan::edit::{Effect, Situation, effect, rename};
use etcd_operator::spec::ClusterSpec;
use etcd_operator::spec::field::{Class, FIELDS, class_of};
use etcd_operator::start::{AddressConflict, Binary, Identity, Refusal};
use serde_json::{Value as Json, json};

fn schema() -> Json {
    let crds: Json = serde_saphyr::from_str(crd::of_clusters()).unwrap();
    crds.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .unwrap()
        .clone()
}

/// The leaves of a schema, by path.
fn leaves(schema: &Json, path: &str, found: &mut BTreeMap<String, Json>) {
    if let Some(fields) = schema["properties"].as_object() {
        for (key, field) in fields {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            leaves(field, &path, found);
        }
    } else if schema["items"]["type"] == "object" {
        leaves(&schema["items"], &format!("{path}[]"), found);
    } else {
        found.insert(path.to_owned(), schema.clone());
    }
}

#[test]
fn every_field_of_the_schema_has_a_row_and_every_row_a_field() {
    let mut found = BTreeMap::new();
    leaves(&schema(), "", &mut found);
    let in_schema: Vec<&str> = found.keys().map(String::as_str).collect();
    let in_table: Vec<&str> = FIELDS.iter().map(|it| it.path).collect();
    assert_eq!(in_table, in_schema);
}

/// A value of such a schema that is no default.
fn sample(schema: &Json) -> Json {
    let default = &schema["default"];
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().find(|it| *it != default).unwrap().clone();
    }
    match schema["type"].as_str().unwrap() {
        "string" => json!("other"),
        "integer" => json!(7),
        "boolean" => json!(default != &json!(true)),
        "array" => json!([sample(&schema["items"])]),
        _ => match schema["properties"].as_object() {
            Some(fields) => required(schema, fields),
            None => json!({"key": "value"}),
        },
    }
}

fn required(schema: &Json, fields: &serde_json::Map<String, Json>) -> Json {
    let names = schema["required"].as_array().cloned().unwrap_or_default();
    let names = names.iter().filter_map(Json::as_str);
    names
        .map(|it| (it.to_owned(), sample(&fields[it])))
        .collect()
}

/// A spec of this schema with one field given, and what else its map requires.
fn with_field(schema: &Json, path: &str) -> Json {
    let Some((key, rest)) = path
        .split_once('.')
        .or_else(|| (!path.is_empty()).then_some((path, "")))
    else {
        return sample(schema);
    };
    let (key, list) = match key.strip_suffix("[]") {
        Some(key) => (key, true),
        None => (key, false),
    };
    let field = &schema["properties"][key];
    let value = if list {
        json!([with_field(&field["items"], rest)])
    } else {
        with_field(field, rest)
    };
    let mut map = required(schema, schema["properties"].as_object().unwrap());
    map[key] = value;
    map
}

#[test]
fn an_edit_changes_the_settings_of_etcd_exactly_where_the_table_says_so() {
    let (schema, default) = (schema(), EtcdClusterSpec::default());
    let mut restarts = 0;
    for field in FIELDS {
        let path = field.path;
        let edited: EtcdClusterSpec = serde_json::from_value(with_field(&schema, path))
            .unwrap_or_else(|it| panic!("{path}: {it}"));
        let restart = convert::settings_of(&edited) != convert::settings_of(&default);
        // Several members have settings of their own; the document does not take them yet.
        let several = path == "size" && edited.size > 1;
        assert_eq!(restart, field.class.is_setting() || several, "{path}");
        restarts += u32::from(restart);
        // The comparison finds it, under a path that the table knows.
        let found = differences(&spelled_out(&default), &spelled_out(&edited));
        let found: Vec<&str> = found.iter().map(|it| it.path.as_str()).collect();
        // `size` is 1 in a document that says nothing, and 0 in a struct that does.
        let of_field: Vec<&&str> = found
            .iter()
            .filter(|it| **it != "size" || path == "size")
            .collect();
        assert!(!of_field.is_empty(), "{path}: {found:?}");
        for it in of_field {
            assert!(path.replace("[]", "[0]").starts_with(*it), "{path}: {it}");
            assert!(class_of(it) >= Some(field.class), "{path}: {it}");
        }
    }
    assert!(restarts > 12, "{restarts}");
}

fn identity() -> Identity {
    Identity {
        cluster: "edge".try_into().unwrap(),
        member: "edge-0".try_into().unwrap(),
        version: "3.6.14".parse().unwrap(),
        other_version: None,
        goes_back: false,
        quota: 256 << 20,
        joined: false,
        served: None,
    }
}

fn spec(text: &str) -> ClusterSpec {
    let text = super::document(&format!("spec: {{{text}}}"));
    etcd_operator::document::parse(text.as_bytes()).unwrap()
}

/// A cluster that serves.
fn living<'a>(identity: &'a Identity, asked: &'a ClusterSpec) -> Situation<'a> {
    Situation {
        identity: Some(identity),
        running: Some(identity.version),
        quota: identity.quota,
        database: Some(50 << 20),
        binary: Some(Binary::Ready),
        failed: None,
        refusal: None,
        start_took: Some(840),
        members: None,
        unserved: false,
        asked,
    }
}

#[test]
fn what_an_edit_does_is_told_in_words() {
    let identity = identity();
    let restart = "restarts etcd once: up to 3 s to stop, about 0.9 s to start";
    let rows = [
        (Class::Restart, "", restart),
        (Class::Size, "size: 0", "stops etcd; everything is kept"),
        (
            Class::Restart,
            "size: 0",
            "takes effect when etcd starts the next time",
        ),
        (
            Class::Restart,
            "paused: true",
            "waits: Paused: the document sets paused: true",
        ),
        (
            Class::Version,
            "version: 3.5.30",
            "refused: UpgradeNotAllowed: etcd 3.5.30 cannot follow etcd 3.6.14, which runs on",
        ),
        (
            Class::Version,
            "version: 3.5.35",
            "has etcd lower the version of its data, takes a snapshot, starts etcd 3.5.35 on a copy of the data, then restarts etcd once with 3.5.35: up to 17 s to stop, about 0.9 s to start",
        ),
        (
            Class::Version,
            "version: 3.7.3",
            "takes a snapshot, starts etcd 3.7.3 on a copy of the data, then restarts etcd once with 3.7.3: up to 17 s to stop, about 0.9 s to start; once it serves, only etcd's own downgrade or a snapshot leads back",
        ),
        (
            Class::Version,
            "version: 3.6.16",
            "takes a snapshot, starts etcd 3.6.16 on a copy of the data, then restarts etcd once with 3.6.16: up to 3 s to stop, about 0.9 s to start",
        ),
        (
            Class::Version,
            "version: 3.6.16, upgrade: {skipRehearsal: 3.6.16}",
            "restarts etcd once with 3.6.16: up to 3 s to stop, about 0.9 s to start, without a trial on a copy of the data",
        ),
        (
            Class::Version,
            "version: 3.6.3",
            "refused: VersionLosesData: the operator gives no data to etcd 3.6.3: 3.6.0-3.6.4 can corrupt data when a snapshot meets defragmentation (fixed in 3.6.5)",
        ),
        (
            Class::Quota,
            "storage: {quota: 64Mi}",
            "refused: QuotaSmaller: the document asks for a quota of 64 MiB, and 256 MiB are in force, of which the database takes 50 MiB: a quota only grows",
        ),
        (Class::Quota, "storage: {quota: 512Mi}", restart),
        (
            Class::Quota,
            "storage: {quota: 256Mi}",
            "nothing: it is the quota that is in force",
        ),
    ];
    for (class, text, words) in rows {
        let asked = spec(text);
        let told = effect(class, &living(&identity, &asked)).to_string();
        assert_eq!(told, words, "{text}");
    }
    assert_eq!(
        rename(&living(&identity, &spec(""))).to_string(),
        "refused: DocumentOfAnotherCluster: this host keeps the cluster edge, and the document names another"
    );
}

#[test]
fn what_an_edit_does_depends_on_what_is_in_force() {
    let (identity, asked) = (identity(), spec(""));
    let living = living(&identity, &asked);
    // What etcd could not be started with waits, whatever else is edited with it.
    let taken = Refusal::AddressUnavailable(AddressConflict {
        address: "127.0.0.1:2399".try_into().unwrap(),
        not_ours: false,
        denied: false,
        holder: "nginx".try_into().unwrap(),
        k3s_embedded: false,
    });
    let blocked = Situation {
        refusal: Some(&taken),
        ..living
    };
    assert_eq!(
        effect(Class::Restart, &blocked),
        Effect::Waits(Hold::Start(taken.clone()))
    );
    assert_eq!(effect(Class::Live, &blocked), Effect::Live);
    // Before a birth nothing is an edit; without a process nothing is interrupted.
    let unborn = Situation {
        identity: None,
        ..living
    };
    let stopped = Situation {
        running: None,
        ..living
    };
    assert_eq!(effect(Class::Restart, &unborn), Effect::Birth);
    // Until it has served, a version that was written wrong is corrected by the document.
    let unserved = Situation {
        unserved: true,
        ..stopped
    };
    assert_eq!(effect(Class::Version, &unserved), Effect::Birth);
    assert_eq!(
        effect(Class::Quota, &unserved),
        effect(Class::Quota, &stopped)
    );
    assert_eq!(rename(&unborn), Effect::Birth);
    assert_eq!(effect(Class::Restart, &stopped), Effect::NextStart);
}
