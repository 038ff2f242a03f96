//! Files that are no document at all.

use std::path::Path;

use expect_test::{Expect, expect};

use super::check;

fn check_file(path: &Path, expected: &Expect) {
    let problems = etcd_operator::document::read(path, path)
        .unwrap_err()
        .to_string();
    let folder = std::env::temp_dir();
    expected.assert_eq(&problems.replace(folder.to_str().unwrap(), "TMP"));
}

#[test]
fn a_missing_file() {
    let path = std::env::temp_dir().join("etcd-operator-no-such-file.yaml");
    check_file(
        &path,
        &expect!["there is no document: sudo etcd-operator init writes the first one"],
    );
}

#[test]
fn a_directory() {
    check_file(&std::env::temp_dir(), &expect!["TMP is not a file"]);
}

#[test]
fn a_file_over_256_kib() {
    let name = format!("etcd-operator-large-{}.yaml", std::process::id());
    let path = std::env::temp_dir().join(&name);
    std::fs::write(&path, vec![b'#'; 256 * 1024 + 1]).unwrap();
    let problems = etcd_operator::document::read(&path, &path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    expect!["the document has 262145 bytes, allowed are 262144"]
        .assert_eq(&problems.to_string().replace(path.to_str().unwrap(), "FILE"));
}

#[test]
fn a_text_over_256_kib() {
    check(
        &"#".repeat(256 * 1024 + 1),
        &expect!["the document has 262145 bytes, allowed are 262144"],
    );
}

#[test]
fn an_empty_text() {
    check(
        "",
        &expect![
            "the document is empty; etcd-operator crd and the example show what belongs in it"
        ],
    );
    check(
        " \n\n",
        &expect![
            "the document is empty; etcd-operator crd and the example show what belongs in it"
        ],
    );
    check(
        "# only a comment\n",
        &expect![
            "line 1: found nothing, allowed is a map with apiVersion, kind, metadata and spec"
        ],
    );
}

#[test]
fn not_utf_8() {
    let problems = etcd_operator::document::parse(b"kind: \xff\xfe").unwrap_err();
    expect!["not UTF-8 text: byte 6 is not"].assert_eq(&problems.to_string());
}

#[test]
fn not_a_map() {
    check(
        "- kind: EtcdCluster",
        &expect!["line 1: found a list, allowed is a map with apiVersion, kind, metadata and spec"],
    );
    check(
        "just a text",
        &expect![
            "line 1: found 'just a text', allowed is a map with apiVersion, kind, metadata and spec"
        ],
    );
    check(
        "42",
        &expect![
            "line 1: found the number 42, allowed is a map with apiVersion, kind, metadata and spec"
        ],
    );
    check(
        "null",
        &expect![
            "line 1: found nothing, allowed is a map with apiVersion, kind, metadata and spec"
        ],
    );
}

#[test]
fn several_documents() {
    check(
        "kind: EtcdCluster\n---\nkind: EtcdCluster\n",
        &expect!["line 2: a second document begins here; allowed is one"],
    );
}

/// As tools leave it: comments alone are no document.
#[test]
fn empty_documents() {
    let text = "# made by a tool\n---\n# the cluster\n---\nspec: 1\n---\n# nothing\n...\n---\n";
    check(
        text,
        &expect![[r#"
        apiVersion: is missing; it must be etcd.edge-operator.io/v1alpha1
        kind: is missing; it must be EtcdCluster
        metadata.name: is missing; it names the cluster
        line 5: spec: found the number 1, allowed: a map"#]],
    );
}

#[test]
fn duplicate_keys() {
    check(
        "spec:\n  size: 1\n  paused: true\n  size: 0\n",
        &expect!["line 4: 'size' appears twice in one map; remove one"],
    );
}

#[test]
fn tabs() {
    check(
        "spec:\n\tsize: 1\n",
        &expect!["line 2: not valid YAML: tabs disallowed within this context (block indentation)"],
    );
}

#[test]
fn broken_yaml() {
    check(
        "spec: {size: 1\n",
        &expect!["line 1: not valid YAML: unclosed bracket '{'"],
    );
    check(
        "spec: \"1\n",
        &expect!["line 2: not valid YAML: invalid indentation in multiline quoted scalar"],
    );
    check(
        "spec: *nowhere\n",
        &expect!["line 1: not valid YAML: while parsing node, found unknown anchor"],
    );
    check(
        "spec: {size: .inf}\n",
        &expect!["line 1: not valid here: .inf is not a finite number"],
    );
    check(
        "spec:\n  size: 1\n  \u{7}\n",
        &expect![[r#"line 3: not valid YAML: unexpected character: `\u{7}'"#]],
    );
    check(
        "? [a]\n: 1\n",
        &expect!["line 1: not valid YAML: a list, map or alias where a field's name belongs"],
    );
}

#[test]
fn alias_bomb() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        let aliases = [alias.as_str(); 9].join(", ");
        text += &["a{}: &a{} [", &aliases, "]\n"]
            .concat()
            .replace("{}", &level.to_string());
    }
    check(
        &text,
        &expect!["line 5: too deeply nested, or more than 20000 values once aliases are expanded"],
    );
}

#[test]
fn deep_nesting() {
    check(
        &format!("spec: {}", "[".repeat(10_000)),
        &expect!["line 1: too deeply nested, or more than 20000 values once aliases are expanded"],
    );
    let block: Vec<String> = (0..200)
        .map(|it| format!("{}a:\n", " ".repeat(it)))
        .collect();
    let block = block.concat();
    check(
        &block,
        &expect!["line 65: too deeply nested, or more than 20000 values once aliases are expanded"],
    );
}

#[test]
fn thousands_of_keys() {
    let text: Vec<String> = (0..15_000).map(|it| format!("key{it}: 1\n")).collect();
    let text = text.concat();
    check(
        &text,
        &expect![
            "line 10000: too deeply nested, or more than 20000 values once aliases are expanded"
        ],
    );
}
