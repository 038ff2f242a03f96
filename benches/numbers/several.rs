//! Several members: from the edit of the size until all vote, and a member whose disk was emptied, under a writer.

use std::fs;
use std::time::{Duration, Instant};

use crate::fleet::{Fleet, kill_member};
use crate::table::Row;
use crate::{LINE, median};

const ROUNDS: usize = 3;
/// The size that is asked for, and what it may take until so many voters are healthy.
const GROWTH: [(usize, Duration); 3] = [
    (3, Duration::from_millis(500)),
    (5, Duration::from_secs(1)),
    (7, Duration::from_millis(1500)),
];
/// What it may take until a member with an emptied disk is a voter again.
const EMPTIED_MAX: Duration = Duration::from_secs(3);
/// For 5 s after members have met, etcd takes no new one. A disk fails later.
const SETTLED: Duration = Duration::from_secs(6);

pub fn rows() -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(measure())
}

async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut gaps = Vec::new();
    for (size, most) in GROWTH {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let (mut fleet, writer) = Fleet::with_writer(LINE, size).await;
            times.push(grow(&mut fleet, size).await);
            gaps.push(writer.end().1);
        }
        let figure = format!("1 -> {size} members, from the edit to {size} voters");
        rows.push(row(figure, times, most));
    }
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (mut fleet, writer) = Fleet::with_writer(LINE, 3).await;
        grow(&mut fleet, 3).await;
        fleet.until_whole().await;
        tokio::time::sleep(SETTLED).await;
        kill_member(&fleet.homes[1]);
        fs::remove_dir_all(fleet.homes[1].lab.lib("member")).unwrap();
        let begin = Instant::now();
        fleet.until_voters().await;
        times.push(begin.elapsed());
        gaps.push(writer.end().1);
    }
    let figure = "a member whose disk was emptied, until it votes again".to_owned();
    rows.push(row(figure, times, EMPTIED_MAX));
    let gap = gaps.into_iter().max().unwrap_or_default();
    let figure = "the longest gap between two acknowledged writes in all of these";
    rows.push(Row::new(figure, format!("{} ms", gap.as_millis())));
    rows
}

async fn grow(fleet: &mut Fleet, size: usize) -> Duration {
    let begin = Instant::now();
    fleet.size = size;
    fleet.until_voters().await;
    begin.elapsed()
}

fn row(figure: String, times: Vec<Duration>, most: Duration) -> Row {
    let time = median(times);
    Row::new(figure, format!("{:.2} s", time.as_secs_f64()))
        .promised(format!("<= {} s", most.as_secs_f64()), time <= most)
}
