//! A real Prometheus: it scrapes, it evaluates rules, it answers.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Output, eventually, output};
use crate::lab::{SOON, skip, tools};
use crate::operator::free_address;

/// Ends with its value.
pub struct Prometheus {
    /// Its directory: configuration, rules beside it, data.
    pub dir: PathBuf,
    process: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts one with this configuration, and with rules that the configuration names by file name.
    pub fn up(configuration: &str, rules: &[(&str, &str)]) -> Option<Prometheus> {
        Self::up_at(free_address(), &[], configuration, rules)
    }

    /// The same at an address, started by a command that brings it there.
    pub fn up_at(
        address: SocketAddr,
        inside: &[&str],
        configuration: &str,
        rules: &[(&str, &str)],
    ) -> Option<Prometheus> {
        let program = tools().join("prometheus/bin/prometheus");
        if !program.exists() {
            skip("tests/tools/prometheus.sh brings a Prometheus");
            return None;
        }
        let port = address.port();
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("prometheus-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("prometheus.yml"), configuration).unwrap();
        for (name, text) in rules {
            fs::write(dir.join(name), text).unwrap();
        }
        let log = fs::File::create(dir.join("log")).unwrap();
        // Its data would outlive a killed test; it itself would not be noticed, so that it is tied to it.
        let process = Command::new("setpriv")
            .arg("--pdeathsig=KILL")
            .args(inside)
            .arg(&program)
            .arg(format!("--web.listen-address={address}"))
            .arg(format!(
                "--config.file={}",
                dir.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Prometheus {
            dir,
            process,
            address,
        };
        let deadline = Instant::now() + SOON;
        while !prometheus.get("/-/ready", &[]).ok {
            let ended = prometheus.process.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "Prometheus is not ready: {}",
                prometheus.log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(prometheus)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Output {
        let mut command = Command::new("curl");
        command.args(["--fail", "--silent", "--max-time", "10", "--get"]);
        for (name, value) in parameters {
            command.args(["--data-urlencode", &format!("{name}={value}")]);
        }
        output(command.arg(format!("{}{path}", self.url())))
    }

    /// What its API says about a path, such as `/api/v1/targets`.
    #[track_caller]
    pub fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let answer: Value = serde_json::from_str(&self.get(path, parameters).good()).unwrap();
        answer["data"].clone()
    }

    /// The value of each series that an expression gives now, with its labels.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let data = self.api("/api/v1/query", &[("query", expression)]);
        let series = data["result"].as_array().unwrap();
        series
            .iter()
            .map(|it| {
                let value = it["value"][1].as_str().unwrap();
                (it["metric"].clone(), value.parse().unwrap())
            })
            .collect()
    }

    /// The names of the alerts that fire.
    #[track_caller]
    pub fn firing(&self) -> Vec<String> {
        let data = self.api("/api/v1/alerts", &[]);
        let alerts = data["alerts"].as_array().unwrap();
        alerts
            .iter()
            .filter(|it| it["state"] == "firing")
            .map(|it| it["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until something is so.
    #[track_caller]
    pub fn eventually<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        eventually(what, within, &mut look, || {
            format!("{}\n{}", self.api("/api/v1/targets", &[]), self.log())
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
