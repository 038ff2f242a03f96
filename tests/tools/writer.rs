//! The writer of `make demo`: writes one key after the other over mutual TLS, counts what is
//! acknowledged, and at the end looks whether all of it is there.
//!
//! `writer ports` prints three free ports; `writer URL CA CERT KEY DIR` writes until DIR/stop
//! exists and keeps the count in DIR/acknowledged.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program for the demo"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, GetOptions, Identity, TlsOptions};
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["ports"] => {
            let sockets = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0"));
            for socket in &sockets {
                let address = socket.as_ref().map_err(ToString::to_string)?.local_addr()?;
                print!("{} ", address.port());
            }
            println!();
            Ok(())
        }
        [url, ca, cert, key, dir] => write(url, [ca, cert, key], Path::new(dir)).await,
        _ => Err("usage: writer ports | writer URL CA CERT KEY DIR".into()),
    }
}

async fn write(
    url: &str,
    [ca, cert, key]: [&str; 3],
    dir: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let identity = Identity::from_pem(fs::read(cert)?, fs::read(key)?);
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(fs::read(ca)?))
        .identity(identity);
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_connect_timeout(Duration::from_secs(1));
    let mut client = Client::connect([url], Some(options)).await?;
    let mut acknowledged = 0_u64;
    while !dir.join("stop").exists() {
        let put = client.put(format!("demo/{acknowledged:08}"), "written", None);
        if let Ok(Ok(_)) = timeout(Duration::from_secs(1), put).await {
            acknowledged += 1;
            fs::write(dir.join("acknowledged.part"), acknowledged.to_string())?;
            fs::rename(dir.join("acknowledged.part"), dir.join("acknowledged"))?;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let options = GetOptions::new().with_prefix().with_count_only();
    let found = client.get("demo/", Some(options)).await?.count();
    println!("{acknowledged} writes acknowledged, {found} are there");
    // One more may be there: written, and its answer lost when etcd was killed.
    if u64::try_from(found)? < acknowledged {
        Err("acknowledged writes are gone".into())
    } else {
        Ok(())
    }
}
