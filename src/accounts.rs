//! Accounts of this host itself: the user of the operator, and who is in its group.

use std::path::Path;

use crate::cluster::{Detail, detail};
use crate::untrusted;

/// The user, and the group, of the operator and of etcd on a host.
pub const USER: &str = "etcd-operator";

/// Bytes of `/etc/passwd` and of `/etc/group`: more than any host of its own accounts has.
const FILE_MAX: u64 = 1 << 20;

/// The ids of a user of this host itself. `passwd`: the path of the file.
pub fn user(passwd: &Path, name: &str) -> Option<(u32, u32)> {
    text(passwd)?.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// Members of the operator's group besides its own user: who can have certificates made, and is not
/// root. `None`: nobody, or it could not be read.
pub fn group(root: &Path) -> Option<Detail> {
    let text = text(&root.join("etc/group"))?;
    let ours = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (name == USER).then(|| fields.nth(2).unwrap_or_default())
    })?;
    let members = ours.split(',').filter(|it| !it.is_empty() && *it != USER);
    let members: Vec<&str> = members.collect();
    (!members.is_empty()).then(|| detail(format_args!("{}", members.join(", "))))
}

fn text(path: &Path) -> Option<String> {
    let bytes = untrusted::read(path, FILE_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "makes a tree")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_user_has_the_ids_of_the_file_and_a_group_its_members() {
        let root =
            std::env::temp_dir().join(format!("etcd-operator-accounts-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).unwrap();
        let passwd = root.join("etc/passwd");
        fs::write(
            &passwd,
            "root:x:0:0::/root:/bin/sh\netcd:x:998:997::/:/x\netcd2:x:1:1::/:/x\n",
        )
        .unwrap();
        assert_eq!(user(&passwd, "etcd"), Some((998, 997)));
        assert_eq!(user(&passwd, "etc"), None);
        let of = |text: &str| {
            fs::write(root.join("etc/group"), text).unwrap();
            group(&root)
        };
        assert_eq!(of("root:x:0:\n"), None);
        assert_eq!(of("etcd-operator:x:998:\n"), None);
        assert_eq!(of("etcd-operator:x:998:etcd-operator\n"), None);
        assert_eq!(of("etcd-operator-b:x:9:eve\n"), None);
        let two = of("a:x:1:b\netcd-operator:x:998:till,etcd-operator,shop\n");
        assert_eq!(two.unwrap().as_str(), "till, shop");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(user(&passwd, "etcd"), None);
        assert_eq!(group(&root), None);
    }
}
