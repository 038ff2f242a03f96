//! What etcd keeps in its buckets, as far as it shows that an entry is whole.

/// What a bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Revisions of keys.
    Keys,
    /// What the cluster agreed on.
    Cluster,
    /// How far the log is applied.
    Meta,
    /// The cluster's members.
    Members,
    /// Anything else.
    Other,
}

impl Kind {
    pub(super) fn of(bucket: &[u8]) -> Self {
        match bucket {
            b"key" => Kind::Keys,
            b"cluster" => Kind::Cluster,
            b"meta" => Kind::Meta,
            b"members" => Kind::Members,
            _ => Kind::Other,
        }
    }
}

/// The main revision of an entry of the store, if its value is that of the same revision: a
/// `KeyValue` of etcd's `kv.proto`.
pub(super) fn revision(key: &[u8], value: &[u8]) -> Option<i64> {
    let (main, deleted) = main_of(key)?;
    // `etcdutl snapshot restore --bump-revision` leaves one entry without a value.
    if value.is_empty() {
        return Some(main);
    }
    let said = fields(value)?;
    (said.key && (deleted || said.modified == main)).then_some(main)
}

/// The main revision that a key of the store names, and whether it is a deletion: eight bytes of
/// main revision, `_`, eight bytes of sub revision, and `t` for a deletion.
pub(super) fn main_of(key: &[u8]) -> Option<(i64, bool)> {
    let (deleted, key) = match key.len() {
        17 => (false, key),
        18 if key[17] == b't' => (true, &key[..17]),
        _ => return None,
    };
    let main = i64::from_be_bytes(key[..8].try_into().ok()?);
    let sub = i64::from_be_bytes(key[9..].try_into().ok()?);
    (key[8] == b'_' && main > 0 && sub >= 0).then_some((main, deleted))
}

#[derive(Default)]
struct Said {
    key: bool,
    modified: i64,
}

/// Reads a `KeyValue`; `None` where it is none.
fn fields(mut bytes: &[u8]) -> Option<Said> {
    let mut said = Said::default();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag {
            // key, value
            0x0a | 0x2a => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                said.key |= tag == 0x0a;
                bytes = bytes.get(length..)?;
            }
            // create_revision, mod_revision, version, lease
            0x10 | 0x18 | 0x20 | 0x30 => {
                let number = varint(&mut bytes)?;
                if tag == 0x18 {
                    said.modified = i64::try_from(number).ok()?;
                }
            }
            _ => return None,
        }
    }
    Some(said)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
