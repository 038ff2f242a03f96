//! What etcd keeps in its buckets, as far as it shows that an entry is whole.

/// What a bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Revisions of keys.
    Keys,
    /// What the cluster agreed on.
    Cluster,
    /// Anything else.
    Other,
}

impl Kind {
    pub(super) fn of(bucket: &[u8]) -> Self {
        match bucket {
            b"key" => Kind::Keys,
            b"cluster" => Kind::Cluster,
            _ => Kind::Other,
        }
    }
}

/// The main revision of an entry of the store, if its value is that of the same revision.
///
/// The key is eight bytes of main revision, `_`, eight bytes of sub revision, and `t` for a
/// deletion; the value is a `KeyValue` of etcd's `kv.proto`.
pub(super) fn revision(key: &[u8], value: &[u8]) -> Option<i64> {
    let (deleted, key) = match key.len() {
        17 => (false, key),
        18 if key[17] == b't' => (true, &key[..17]),
        _ => return None,
    };
    if key[8] != b'_' {
        return None;
    }
    let main = i64::from_be_bytes(key[..8].try_into().ok()?);
    let sub = i64::from_be_bytes(key[9..].try_into().ok()?);
    // `etcdutl snapshot restore --bump-revision` leaves one entry without a value.
    let fits = main > 0 && sub >= 0 && (value.is_empty() || is_of(value, main, deleted)?);
    fits.then_some(main)
}

fn is_of(value: &[u8], main: i64, deleted: bool) -> Option<bool> {
    let said = fields(value)?;
    Some(said.key && (deleted || said.modified == main))
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
