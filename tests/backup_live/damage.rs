//! A damaged database is found by the walk alone, and whatever etcd's own check refuses, the walk
//! refuses too.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use etcd_operator::etcd::bolt;

use crate::lab::etcd_dir;
use crate::raw::{BRANCH, HEADER, LEAF, META, NO_FREE_LIST, Raw, Seen};
use crate::stage::{Stage, unpack};

/// A database with branches over branches, entries of several pages, free pages and every bucket
/// that etcd has.
fn database(line: &str) -> Raw {
    let stage = Stage::with(line, "", "options: {maxRequestSize: 4Mi}");
    stage.fill("gone", 2000, 100);
    stage.fill("key", 9000, 60);
    stage.fill("large", 3, 50_000);
    stage.etcdctl(&["lease", "grant", "3600"]);
    stage.etcdctl(&["user", "add", "somebody:secret"]);
    stage.etcdctl(&["role", "add", "something"]);
    stage.etcdctl(&["del", "--prefix", "gone/"]);
    stage.compact();
    stage.fill("after", 300, 20);
    let (packed, _) = stage.saved();
    let path = stage.lab.root.join("raw.db");
    unpack(&packed, &path);
    let raw = Raw::new(fs::read(path).unwrap());
    let pages = raw.reachable();
    assert!(
        pages.iter().any(|it| it.depth >= 2),
        "branches over branches"
    );
    assert!(pages.iter().any(|it| raw.overflow(it.id) > 5), "long pages");
    assert!(raw.free().len() > 10, "free pages");
    raw
}

/// What the walk finds; none: the database is whole.
fn ours(bytes: &[u8]) -> Option<String> {
    bolt::walk(&mut &*bytes, &mut |_| ())
        .err()
        .map(|it| it.to_string())
}

/// Whether etcd's own check refuses it. What damage does to etcd's program is a refusal too.
fn refused_by(line: &str, raw: &Raw) -> bool {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("damaged-{}-{number}.db", std::process::id()));
    fs::write(&path, &raw.bytes).unwrap();
    let status = Command::new("timeout")
        .arg("20")
        .arg(etcd_dir(line).join("etcdutl"))
        .args(["snapshot", "status"])
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    fs::remove_file(path).unwrap();
    !status.success()
}

struct Case {
    what: String,
    raw: Raw,
    /// etcd's own check would follow a circle until its memory ends.
    circle: bool,
}

/// Collects damaged copies of a database.
struct Cases {
    whole: Raw,
    cases: Vec<Case>,
}

impl Cases {
    fn add(&mut self, what: impl Into<String>, damage: impl FnOnce(&mut Raw)) {
        let mut raw = self.whole.clone();
        damage(&mut raw);
        let what = what.into();
        assert!(raw.bytes != self.whole.bytes, "{what} changes nothing");
        self.cases.push(Case {
            what,
            raw,
            circle: false,
        });
    }

    fn circle(&mut self, what: &str, damage: impl FnOnce(&mut Raw)) {
        self.add(what, damage);
        self.cases.last_mut().unwrap().circle = true;
    }

    fn metas(&mut self) {
        for (field, ..) in META {
            for meta in [0, 1] {
                self.add(format!("meta {meta}: {field}"), |it| {
                    let (at, length) = it.meta_at(meta, field);
                    it.set(at, length, it.get(at, length) ^ 1);
                });
            }
        }
        for meta in [0, 1] {
            for (field, at, length) in [
                ("id", 0, 8),
                ("flags", 8, 2),
                ("count", 10, 2),
                ("overflow", 12, 4),
            ] {
                self.add(format!("meta {meta}: the header's {field}"), |it| {
                    let at = it.at(meta) + at;
                    it.set(at, length, it.get(at, length) ^ 1);
                });
            }
        }
        let (pages, root) = (self.whole.meta("pages"), self.whole.meta("root"));
        let leaf = self.page(|raw, it| it.keys && raw.flags(it.id) == LEAF).id;
        for (what, field, value) in [
            ("another page size", "page size", 8192),
            ("no page size", "page size", 0),
            ("another root", "root", leaf),
            ("a root in the metas", "root", 0),
            ("a root beyond the end", "root", pages + 7),
            ("more pages than there are", "pages", pages + 1000),
            ("fewer pages than there are", "pages", pages.min(leaf)),
            ("a free list that is a leaf", "free list", root),
            ("a free list beyond the end", "free list", pages + 7),
        ] {
            self.add(format!("metas that agree: {what}"), |it| {
                it.set_meta(field, value);
            });
        }
    }

    /// The first page of a kind.
    fn page(&self, which: impl Fn(&Raw, &Seen) -> bool) -> Seen {
        let pages = self.whole.reachable();
        *pages.iter().find(|it| which(&self.whole, it)).unwrap()
    }

    /// Each field of the header and of some elements of a page.
    fn fields(&mut self, kind: &str, page: u64) {
        let count = self.whole.count(page);
        let header = self.whole.at(page);
        let bits: &[(&str, usize, usize, u64)] = &[
            ("id", 0, 8, 1),
            ("id's highest byte", 0, 8, 1 << 56),
            ("branch flag", 8, 2, 1),
            ("leaf flag", 8, 2, 2),
            ("meta flag", 8, 2, 4),
            ("free list flag", 8, 2, 0x10),
            ("an unknown flag", 8, 2, 0x100),
            ("count", 10, 2, 1),
            ("count's highest bit", 10, 2, 0x8000),
            ("overflow", 12, 4, 1),
            ("overflow's highest bit", 12, 4, 1 << 31),
        ];
        for (field, at, length, bit) in bits {
            self.add(format!("{kind}: {field}"), |it| {
                it.set(header + at, *length, it.get(header + at, *length) ^ bit);
            });
        }
        let fields: &[(&str, usize)] = if self.whole.flags(page) == BRANCH {
            &[
                ("pos", 0),
                ("ksize", 4),
                ("child", 8),
                ("child's higher half", 12),
            ]
        } else {
            &[("flags", 0), ("pos", 4), ("ksize", 8), ("vsize", 12)]
        };
        for index in [0, 1, count / 2, count - 1] {
            let at = self.whole.element(page, index);
            for (field, offset) in fields {
                for bit in [1, 0x10, 0x8000_0000] {
                    if index < count && self.whole.bytes.len() > at {
                        self.add(
                            format!("{kind}: element {index}'s {field} ^ {bit:x}"),
                            |it| {
                                it.set(at + offset, 4, it.get(at + offset, 4) ^ bit);
                            },
                        );
                    }
                }
            }
        }
    }

    fn order(&mut self) {
        let leaf = self.page(|raw, it| it.keys && raw.flags(it.id) == LEAF).id;
        self.add("leaf: two keys exchanged", |it| {
            let ((one, _), (two, _)) = (it.entry(leaf, 3), it.entry(leaf, 4));
            let kept = it.bytes[one.clone()].to_vec();
            it.bytes.copy_within(two.clone(), one.start);
            it.bytes[two].copy_from_slice(&kept);
        });
        self.add("leaf: a key twice", |it| {
            let ((one, _), (two, _)) = (it.entry(leaf, 3), it.entry(leaf, 4));
            it.bytes.copy_within(one, two.start);
        });
        for (what, index) in [("first", 0), ("last", self.whole.count(leaf) - 1)] {
            self.add(
                format!("leaf: the {what} key of another page's range"),
                |it| {
                    let (key, _) = it.entry(leaf, index);
                    let byte = if index == 0 { 0 } else { 0x7f };
                    it.bytes[key][..8].fill(byte);
                },
            );
        }
    }

    fn links(&mut self) {
        let raw = self.whole.clone();
        let branch = self
            .page(|raw, it| it.keys && it.depth == 1 && raw.flags(it.id) == BRANCH)
            .id;
        let top = self
            .page(|raw, it| it.keys && it.depth == 0 && raw.flags(it.id) == BRANCH)
            .id;
        let other = self
            .page(|raw, it| raw.flags(it.id) == LEAF && it.keys && it.depth == 2)
            .id;
        let (free, pages) = (raw.free(), raw.meta("pages"));
        let link = |page, index| raw.element(page, index) + 8;
        let (first, second) = (link(branch, 2), link(branch, 3));
        self.add("link: two places, one page", |it| {
            it.set(first, 8, it.get(second, 8));
        });
        self.add("link: siblings exchanged", |it| {
            let (one, two) = (it.get(first, 8), it.get(second, 8));
            it.set(first, 8, two);
            it.set(second, 8, one);
        });
        self.add("link: branches exchanged", |it| {
            let (one, two) = (it.get(link(top, 0), 8), it.get(link(top, 1), 8));
            it.set(link(top, 0), 8, two);
            it.set(link(top, 1), 8, one);
        });
        self.add("link: to a page of another branch", |it| {
            it.set(link(top, 1), 8, other);
        });
        for id in [free[0], free[free.len() / 2], free[free.len() - 1]] {
            self.add(format!("link: to the free page {id}"), |it| {
                it.set(first, 8, id);
            });
        }
        self.add("link: to a meta page", |it| it.set(first, 8, 1));
        self.add("link: just beyond the end", |it| it.set(first, 8, pages));
        self.add("link: far beyond the end", |it| {
            it.set(first, 8, u64::MAX / 2);
        });
        self.circle("link: to itself", |it| it.set(first, 8, branch));
        self.circle("link: to its parent", |it| it.set(first, 8, top));
        let long = self.page(|raw, it| raw.overflow(it.id) > 5).id;
        self.add("link: into the middle of a long page", |it| {
            it.set(first, 8, long + 2);
        });
        let buckets = raw.meta("root");
        for index in 0..raw.count(buckets) {
            let (key, value) = raw.entry(buckets, index);
            let name = String::from_utf8_lossy(&raw.bytes[key]).into_owned();
            self.add(format!("bucket {name}: root"), |it| {
                it.set(value.start, 8, it.get(value.start, 8) ^ 0x100_0000);
            });
            let inline = raw.get(value.start, 8) == 0;
            for (field, at, length) in [("flags", 24, 2), ("count", 26, 2), ("overflow", 28, 4)] {
                if inline {
                    self.add(format!("bucket {name}, inline: {field}"), |it| {
                        let at = value.start + at;
                        it.set(at, length, it.get(at, length) ^ 1);
                    });
                }
            }
        }
    }

    fn ends(&mut self) {
        let (size, page) = (self.whole.bytes.len(), self.whole.page_size);
        for (what, left) in [
            ("a byte", size - 1),
            ("a page", size - page),
            ("half of it", size / 2 / page * page),
            ("all but the metas", 2 * page),
            ("all but a page", page),
            ("all but a byte", 1),
            ("everything", 0),
        ] {
            self.add(format!("cut off: {what}"), |it| it.bytes.truncate(left));
        }
        self.add("a page of zeros", |it| {
            let pages = it.reachable();
            let leaf = pages
                .iter()
                .find(|seen| seen.keys && it.flags(seen.id) == LEAF)
                .unwrap()
                .id;
            let at = it.at(leaf);
            it.bytes[at..at + page].fill(0);
        });
        self.add("two pages exchanged", |it| {
            let pages = it.reachable();
            let leaves: Vec<usize> = pages
                .iter()
                .filter(|seen| seen.keys && it.flags(seen.id) == LEAF && it.overflow(seen.id) == 0)
                .map(|seen| it.at(seen.id))
                .collect();
            let kept = it.bytes[leaves[0]..leaves[0] + page].to_vec();
            it.bytes.copy_within(leaves[1]..leaves[1] + page, leaves[0]);
            it.bytes[leaves[1]..leaves[1] + page].copy_from_slice(&kept);
        });
    }

    fn free_list(&mut self) {
        let list = self.whole.meta("free list");
        let at = self.whole.at(list);
        let used = self.page(|raw, it| raw.flags(it.id) == LEAF).id;
        let pages = self.whole.meta("pages");
        let length = usize::try_from(self.whole.get(at + 10, 2)).unwrap();
        let twice = self.whole.get(at + HEADER, 8);
        for (what, id) in [("a used page", used), ("a page twice", twice)] {
            self.add(format!("free list: {what} beside all others"), |it| {
                it.set(at + HEADER + length * 8, 8, id);
                it.set(at + 10, 2, length as u64 + 1);
            });
        }
        for (what, offset, bytes, value) in [
            ("id", 0, 8, list ^ 1),
            ("flags", 8, 2, u64::from(LEAF)),
            ("one less", 10, 2, length as u64 - 1),
            ("one more", 10, 2, length as u64 + 1),
            ("more than fit", 10, 2, 0xfffe),
            ("a count that stands elsewhere", 10, 2, 0xffff),
            ("overflow", 12, 4, 1000),
            ("a used page is free", HEADER, 8, used),
            ("a meta page is free", HEADER, 8, 1),
            ("the list itself is free", HEADER, 8, list),
            ("beyond the end", HEADER, 8, pages),
            (
                "a page twice",
                HEADER,
                8,
                self.whole.get(at + HEADER + 8, 8),
            ),
        ] {
            self.add(format!("free list: {what}"), |it| {
                it.set(at + offset, bytes, value);
            });
        }
    }

    /// Every case is found. etcd's own check is asked about what the walk accepts, and about some
    /// fifty others, to see that these are damage indeed.
    fn check(&self, lines: &[&str]) {
        assert_eq!(ours(&self.whole.bytes), None, "no false alarm");
        for line in lines {
            assert!(
                !refused_by(line, &self.whole),
                "etcd {line} accepts the whole one"
            );
        }
        let mut missed = Vec::new();
        let (mut asked, mut refused) = (0, 0);
        let step = self.cases.len() / 50 + 1;
        for (index, case) in self.cases.iter().enumerate() {
            let found = ours(&case.raw.bytes);
            let line = lines[index % lines.len()];
            if case.circle || found.is_some() && index % step != 0 {
                if found.is_none() {
                    missed.push(format!("{}: nobody finds it", case.what));
                }
                continue;
            }
            let etcd = refused_by(line, &case.raw);
            asked += 1;
            refused += u32::from(etcd);
            match found {
                None if etcd => missed.push(format!("{}: etcd {line} refuses it", case.what)),
                None => missed.push(format!("{}: nobody finds it", case.what)),
                Some(why) if !etcd => println!("{}: {why}; etcd {line} accepts it", case.what),
                Some(_) => {}
            }
        }
        println!("etcd {lines:?} refuses {refused} of {asked}");
        assert!(refused > asked / 4, "{refused} of {asked}");
        println!("{} kinds of damage", self.cases.len());
        assert!(missed.is_empty(), "{missed:#?}");
    }
}

fn cases(whole: Raw) -> Cases {
    Cases {
        whole,
        cases: Vec::new(),
    }
}

fn damage(line: &str) {
    let mut all = cases(database(line));
    assert_eq!(
        all.whole.meta("free list"),
        NO_FREE_LIST,
        "etcd keeps none in the file"
    );
    all.metas();
    let raw = all.whole.clone();
    let pages = raw.reachable();
    let mut page = |kind: &str, which: &dyn Fn(&Seen) -> bool| {
        let seen = pages.iter().find(|it| which(it)).unwrap();
        all.fields(kind, seen.id);
    };
    page("top branch", &|it| it.keys && it.depth == 0);
    page("branch", &|it| it.keys && it.depth == 1);
    page("leaf", &|it| {
        it.keys && it.depth == 2 && raw.overflow(it.id) == 0
    });
    page("long leaf", &|it| raw.overflow(it.id) > 5);
    page("buckets", &|it| it.id == raw.meta("root"));
    all.order();
    all.links();
    all.ends();
    all.check(&[line]);
}

#[test]
fn damage_of_a_3_5_database_is_found_by_the_walk_alone() {
    damage("3.5");
}

#[test]
fn damage_of_a_3_7_database_is_found_by_the_walk_alone() {
    damage("3.7");
}

/// etcd on Linux keeps no list of free pages in the file; elsewhere it may.
#[test]
fn damage_of_a_list_of_free_pages_of_every_line_is_found_by_the_walk_alone() {
    let mut all = cases(database("3.6").with_free_list());
    all.free_list();
    all.links();
    all.check(&["3.5", "3.6", "3.7"]);
}

/// One bit anywhere in headers and elements.
#[test]
fn any_changed_bit_of_the_structure_is_found_by_the_walk_alone() {
    let raw = database("3.6");
    let mut places = Vec::new();
    for seen in raw.reachable() {
        let end = HEADER + raw.count(seen.id) * 16;
        places.extend((raw.at(seen.id)..raw.at(seen.id) + end).map(|at| (at, seen)));
    }
    let step = places.len() / 600 + 1;
    let mut bytes = raw.bytes.clone();
    let mut missed = Vec::new();
    for (number, (at, seen)) in places.iter().step_by(step).enumerate() {
        let bit = 1 << (number % 8);
        bytes[*at] ^= bit;
        if ours(&bytes).is_none() {
            missed.push(format!(
                "byte {} ^ {bit:x} of page {seen:?}",
                at - raw.at(seen.id)
            ));
        }
        bytes[*at] ^= bit;
    }
    assert_eq!(ours(&bytes), None);
    println!("{} of {} places", places.len() / step, places.len());
    assert!(missed.is_empty(), "{missed:#?}");
}
