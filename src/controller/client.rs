//! The way to the API server.

use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;

use super::ControllerError;

/// An answer begins within this, or none is waited for: a request into a wire that was cut would keep a
/// cluster's pass for a quarter of an hour. The server itself gives up after 60 s (its
/// `--request-timeout`); a watch's answer begins at once, and may then last.
const ANSWER: Duration = Duration::from_secs(65);

/// By the Pod's environment, elsewhere by KUBECONFIG.
pub(super) async fn connect() -> Result<Client, ControllerError> {
    let config = Config::infer().await;
    let config = config.map_err(|error| ControllerError::Config(error.to_string()))?;
    impatient(config, ANSWER)
}

fn impatient(config: Config, answer: Duration) -> Result<Client, ControllerError> {
    let client = ClientBuilder::try_from(config);
    let client = client.map_err(|error| ControllerError::Config(error.to_string()))?;
    Ok(client.with_layer(&TimeoutLayer::new(answer)).build())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_takes_a_request_and_says_nothing_is_not_waited_for() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let accepted = tokio::spawn(async move { silent.accept().await });
        let url = format!("http://{address}").parse().unwrap();
        let client = impatient(Config::new(url), Duration::from_millis(200)).unwrap();
        let pods: Api<Pod> = Api::all(client);
        let asked = tokio::time::timeout(Duration::from_secs(10), pods.get_opt("one"));
        let answer = asked.await.expect("it waits on");
        let why = crate::error::chain(&answer.unwrap_err());
        assert!(why.contains("timed out"), "{why}");
        assert!(accepted.await.unwrap().is_ok());
    }
}
