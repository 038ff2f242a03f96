//! Each rule in CEL, as the API server runs it, against the same rule as code.

use std::sync::Arc;

use cel::{Context, Env, Program, Value};
use etcd_operator::api::rules::{OF_A_HOST, OF_KUBERNETES, RULES, Rule};
use etcd_operator::api::{EtcdClusterSpec, crd};
use serde_json::{Value as Json, json};

use super::random::{self, Random};

const SPECS: u64 = 2500;

/// Whole numbers are `int`, as in Kubernetes; fields that are null count as absent there.
fn cel_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(it) => Value::Bool(*it),
        Json::Number(it) => Value::Int(it.as_i64().unwrap()),
        Json::String(it) => it.as_str().into(),
        Json::Array(items) => items.iter().map(cel_value).collect::<Vec<_>>().into(),
        Json::Object(fields) => fields
            .iter()
            .filter(|(_, it)| !it.is_null())
            .map(|(key, it)| (key.clone(), cel_value(it)))
            .collect::<std::collections::HashMap<String, Value>>()
            .into(),
    }
}

fn verdict(program: &Program, environment: &Arc<Env>, this: &Value) -> bool {
    let mut context = Context::with_env(environment.clone());
    context.add_variable_from_value("self", this.clone());
    match program.execute(&context).unwrap() {
        Value::Bool(it) => it,
        other => panic!("a rule says {other:?}"),
    }
}

/// What the API server does before it checks: the defaults of the schema are filled in.
fn with_defaults(schema: &Json, value: &mut Json) {
    if let (Some(Json::Object(properties)), Json::Object(fields)) =
        (schema.get("properties"), &mut *value)
    {
        for (key, property) in properties {
            if let Some(default) = property.get("default") {
                fields.entry(key).or_insert_with(|| default.clone());
            }
            if let Some(field) = fields.get_mut(key) {
                with_defaults(property, field);
            }
        }
    }
    if let (Some(items), Json::Array(values)) = (schema.get("items"), value) {
        for it in values {
            with_defaults(items, it);
        }
    }
}

/// Leaves out fields at random, required ones excepted.
fn thin_out(schema: &Json, value: &mut Json, random: &mut Random) {
    let Json::Object(fields) = value else { return };
    let required = schema.get("required").cloned().unwrap_or_else(|| json!([]));
    fields.retain(|key, _| required.as_array().unwrap().contains(&json!(key)) || !random.one_in(4));
    for (key, field) in fields {
        thin_out(&schema["properties"][key], field, random);
    }
}

fn spec_schema() -> Json {
    let crds: Json = serde_saphyr::from_str(crd::of_clusters()).unwrap();
    crds.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .unwrap()
        .clone()
}

#[test]
fn each_rule_says_the_same_in_cel_and_in_code() {
    let environment = Arc::new(Env::stdlib());
    let rules: Vec<&Rule> = RULES.iter().chain(OF_A_HOST).chain(OF_KUBERNETES).collect();
    let programs: Vec<Program> = rules
        .iter()
        .map(|it| environment.compile(it.cel).unwrap())
        .collect();
    let schema = spec_schema();
    let mut seen = vec![(0, 0); rules.len()];
    for seed in 0..SPECS {
        let mut random = Random(seed);
        let mut json = serde_json::to_value(random::spec(&mut random)).unwrap();
        thin_out(&schema, &mut json, &mut random);
        let wire: EtcdClusterSpec = serde_json::from_value(json.clone()).unwrap();
        with_defaults(&schema, &mut json);
        let this = cel_value(&json);
        for ((rule, program), seen) in rules.iter().zip(&programs).zip(&mut seen) {
            let cel = verdict(program, &environment, &this);
            assert_eq!(
                cel,
                (rule.holds)(&wire),
                "SEED={seed}: {}\n{json}",
                rule.cel
            );
            *(if cel { &mut seen.0 } else { &mut seen.1 }) += 1;
        }
    }
    for (rule, (held, broken)) in rules.iter().zip(seen) {
        assert!(
            held > 20 && broken > 20,
            "{}: {held} held, {broken} broken",
            rule.cel
        );
    }
}

#[test]
fn the_defaults_of_the_crd_are_those_of_the_types() {
    let schema = spec_schema();
    for seed in 0..SPECS {
        let mut random = Random(seed);
        let mut json = serde_json::to_value(random::spec(&mut random)).unwrap();
        thin_out(&schema, &mut json, &mut random);
        let ours: EtcdClusterSpec = serde_json::from_value(json.clone()).unwrap();
        with_defaults(&schema, &mut json);
        let theirs: EtcdClusterSpec = serde_json::from_value(json).unwrap();
        assert_eq!(ours, theirs, "SEED={seed}");
    }
}

#[test]
fn the_name_rule_says_what_the_parser_says() {
    let crds: Json = serde_saphyr::from_str(crd::of_clusters()).unwrap();
    let rules =
        &crds["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"];
    let environment = Arc::new(Env::stdlib());
    let program = environment
        .compile(rules[0]["rule"].as_str().unwrap())
        .unwrap();
    let (at, over) = ("e".repeat(50), "e".repeat(51));
    let mut seen = [0, 0];
    for name in [
        "", "e", "edge", "edge-1", "-e", "e-", "E", "e.e", "e_e", "é", "e\n", &at, &over,
    ] {
        let document = json!({"apiVersion": "etcd.edge-operator.io/v1alpha1", "kind": "EtcdCluster", "metadata": {"name": name}, "spec": {}});
        let ours = etcd_operator::document::parse(document.to_string().as_bytes()).is_ok();
        let theirs = verdict(&program, &environment, &cel_value(&document));
        assert_eq!(ours, theirs, "{name:?}");
        seen[usize::from(ours)] += 1;
    }
    assert_eq!(seen, [9, 4]);
}

#[test]
fn rules_use_only_what_every_api_server_knows() {
    let known = ["all", "exists_one", "has", "matches", "size"];
    for rule in RULES.iter().chain(OF_A_HOST).chain(OF_KUBERNETES) {
        for (index, _) in rule.cel.match_indices('(') {
            let before = rule.cel[..index].chars().rev();
            let name: String = before
                .take_while(|it| it.is_ascii_alphanumeric() || *it == '_')
                .collect();
            let name: String = name.chars().rev().collect();
            assert!(
                name.is_empty() || known.contains(&name.as_str()),
                "{name} in {}",
                rule.cel
            );
        }
    }
}
