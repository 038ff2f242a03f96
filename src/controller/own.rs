//! Where the operator itself runs: what its Pod was told, and the image that it is of.

use std::time::Duration;

use super::Shared;
use super::names;
use super::objects::{Kind, Objects};

/// Where the operator itself runs.
#[derive(Clone, Debug)]
pub struct Own {
    /// Its Pod.
    pub pod: String,
    /// Its Pod's namespace.
    pub namespace: String,
    /// Its node.
    pub node: String,
    /// Its address for metrics, `/livez` and `/readyz`.
    pub listen: std::net::SocketAddr,
    /// Images of etcd that a document may name.
    pub image_prefixes: Vec<String>,
    /// Where it works; empty: in all namespaces.
    pub namespaces: Vec<String>,
}

impl Own {
    /// Whether it was given this namespace, by name or with all.
    pub(super) fn works_in(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|it| it == namespace)
    }
}

/// The image of this Pod, which members' Pods take the guard from.
pub(super) async fn image(shared: &Shared) -> String {
    let objects = Objects::new(shared.client.clone(), shared.confirmed.clone());
    loop {
        let own = &shared.own;
        match objects.get(Kind::Pod, &own.namespace, &own.pod).await {
            Ok(Some(pod)) => {
                let containers = pod.data["spec"]["containers"].as_array();
                let mut containers = containers.into_iter().flatten();
                let own = containers
                    .clone()
                    .find(|it| it["name"] == names::OPERATOR)
                    .or_else(|| containers.next());
                let image = own.and_then(|it| it["image"].as_str());
                return image.unwrap_or_default().to_owned();
            }
            // Outside of a Pod: a controller on a desk, for tests.
            Ok(None) => return std::env::var("ETCD_OPERATOR_IMAGE").unwrap_or_default(),
            Err(error) => tracing::warn!("{error}"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
