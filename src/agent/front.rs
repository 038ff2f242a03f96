//! The thread that answers: signals and questions, at any time, whatever a pass waits for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::board::Board;
use super::driver::HostDriver;
use super::edit::FieldChange;
use super::kept::{self, Accepted, RefusedDocument};
use super::passes::{self, Order};
use super::socket::{self, Answer, Question, Request};
use super::{Agent, AgentError, DirectoryLock, Locking, Report, lock, notify};
use crate::clock;
use crate::document::Document;
use crate::error::chain;
use crate::paths::Paths;
use crate::state;
use crate::telemetry::Metrics;

/// As much as a process' first thread has. A pass holds what was seen of all members on its stack; what it does
/// not touch costs nothing.
const PASSES_STACK: usize = 8 << 20;

/// Who asks for the status waits so long for a new look; then the last one has to do.
const FRESH_WITHIN: Duration = Duration::from_millis(700);
/// Who asks for a certificate waits so long.
const ISSUED_WITHIN: Duration = Duration::from_secs(10);
/// So often is looked whether commands still find the operator.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// A step that is being taken when the agent is told to end gets so long.
const END_WITHIN: Duration = Duration::from_secs(3);

/// What an agent begins with.
pub struct Beginning {
    /// Where things lie.
    pub paths: Paths,
    /// The document is read from here.
    pub config: PathBuf,
    /// The one that is in force.
    pub accepted: Accepted,
    /// Why the newest one is not, where it is not.
    pub refused: Option<RefusedDocument>,
    /// What keeps etcd's process.
    pub driver: HostDriver,
    /// Metrics, where they are served.
    pub telemetry: Option<Arc<Metrics>>,
}

/// Runs until SIGTERM or SIGINT. etcd stays.
pub async fn run(beginning: Beginning) -> Result<(), AgentError> {
    let mut signals = Signals {
        terminate: listen(SignalKind::terminate())?,
        interrupt: listen(SignalKind::interrupt())?,
        hangup: listen(SignalKind::hangup())?,
    };
    let Beginning {
        paths,
        config,
        accepted,
        refused,
        driver,
        telemetry,
    } = beginning;
    let lock = lock(&paths, Locking::Agent)?;
    let (sender, questions) = mpsc::channel(8);
    let socket = socket::serve(&paths, sender.clone())?;
    let spec = &accepted.document.spec;
    tracing::info!(cluster = %spec.name, size = spec.size, document = %config.display(), "operator started");
    let agent = Agent::new(&paths, driver, telemetry);
    let board = agent.board.clone();
    let before = state::load_volatile::<Report>(&paths.status());
    {
        let posted = &mut *board.lock();
        posted.accepted = Some(accepted.clone());
        posted.start_took = agent.served().and_then(|it| it.took_milliseconds);
    }
    if let Some(report) = before.clone() {
        board.inherit(report);
    }
    let (orders, received) = mpsc::channel(16);
    let passes = begin_passes(agent, before, accepted, received)?;
    notify::keep_watchdog(board.clone());
    let front = Front {
        paths,
        config,
        board,
        orders,
        reading: None,
        asked: Vec::new(),
        reached: Presence {
            lock,
            socket,
            sender,
            told: None,
        },
    };
    if let Some(refused) = refused {
        front.refuse(&refused);
    }
    front.serve(&mut signals, questions, passes).await
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

fn listen(kind: SignalKind) -> Result<Signal, AgentError> {
    signal(kind).map_err(system("listen for signals"))
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> AgentError {
    move |source| AgentError::System {
        what,
        path: PathBuf::new(),
        source,
    }
}

/// Begins to make passes, in a thread and with a runtime of its own. What this returns is dropped when
/// that thread ends.
fn begin_passes(
    mut agent: Agent,
    before: Option<Report>,
    accepted: Accepted,
    orders: mpsc::Receiver<Order>,
) -> Result<oneshot::Receiver<()>, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(system("begin to look after etcd"))?;
    let (alive, ended) = oneshot::channel();
    // Conditions keep their times, and are told anew.
    agent.memory.before = before;
    std::thread::Builder::new()
        .name("passes".to_owned())
        .stack_size(PASSES_STACK)
        .spawn(move || {
            let _alive: oneshot::Sender<()> = alive;
            runtime.block_on(passes::keep(agent, accepted, orders));
        })
        .map_err(system("begin to look after etcd"))?;
    Ok(ended)
}

/// What the document's file holds, and what it changes.
type Read = Result<(Document, Vec<FieldChange>), RefusedDocument>;

struct Front {
    paths: Paths,
    config: PathBuf,
    board: Arc<Board>,
    orders: mpsc::Sender<Order>,
    /// The document is being read: who asked, and its end.
    reading: Option<(Vec<Answer>, oneshot::Receiver<Read>)>,
    /// Who asked since.
    asked: Vec<Option<Answer>>,
    reached: Presence,
}

/// What others find this agent by. Both are files, which anybody's clean-up may delete.
struct Presence {
    lock: DirectoryLock,
    socket: socket::Socket,
    sender: mpsc::Sender<Question>,
    /// Why they could not be put back, as it was logged.
    told: Option<String>,
}

impl Presence {
    /// Puts back what was deleted.
    fn keep(&mut self, paths: &Paths) {
        let kept = self.try_keep(paths);
        let why = kept.err().map(|error| chain(&error));
        if let Some(why) = why.as_ref().filter(|it| self.told.as_ref() != Some(it)) {
            tracing::warn!("commands do not reach the operator: {why}");
        }
        self.told = why;
    }

    fn try_keep(&mut self, paths: &Paths) -> Result<(), AgentError> {
        if self.lock.renew(paths)? {
            tracing::warn!(path = %paths.operator_lock().display(), "somebody deleted the operator's lock: the operator took it again");
        }
        if !self.socket.is_in_place() {
            self.socket = socket::serve(paths, self.sender.clone())?;
            tracing::warn!(path = %paths.socket().display(), "somebody deleted the operator's socket: the operator made it again");
        }
        Ok(())
    }
}

impl Front {
    async fn serve(
        mut self,
        signals: &mut Signals,
        mut questions: mpsc::Receiver<Question>,
        mut passes: oneshot::Receiver<()>,
    ) -> Result<(), AgentError> {
        let mut keep = tokio::time::interval(KEEP_EVERY);
        keep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let reading = async {
                match &mut self.reading {
                    Some((_, read)) => read.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = signals.terminate.recv() => return self.end().await,
                _ = signals.interrupt.recv() => return self.end().await,
                _ = signals.hangup.recv() => self.reload(None),
                Some(question) = questions.recv() => self.answer(question),
                read = reading => self.take(read),
                _ = keep.tick() => self.reached.keep(&self.paths),
                _ = &mut passes => return Err(AgentError::PassesEnded),
            }
        }
    }

    /// Ends the operator; etcd runs on. A step that is under way gets a limited time to end.
    async fn end(self) -> Result<(), AgentError> {
        notify::stopping();
        let begin = clock::since_boot();
        while self.board.step().is_some() && clock::since_boot() < begin + END_WITHIN {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if let Some(step) = self.board.step() {
            tracing::warn!("the operator ends while this is under way: {step}");
        } else {
            tracing::info!("the operator ends; etcd runs on");
        }
        Ok(())
    }

    /// Reads the document again, in a thread of its own: its disk may not answer either.
    fn reload(&mut self, answer: Option<Answer>) {
        if self.reading.is_some() {
            // What is being read may be older than the edit that this is about.
            self.asked.push(answer);
            return;
        }
        let (sender, receiver) = oneshot::channel();
        let (paths, config) = (self.paths.clone(), self.config.clone());
        let in_force = self.board.in_force(&paths);
        std::thread::spawn(move || {
            let read = kept::read(&paths, &config).map(|document| {
                let changes = in_force.changes(&paths, &document);
                (document, changes)
            });
            sender.send(read)
        });
        self.reading = Some((answer.into_iter().collect(), receiver));
    }

    /// The document was read.
    fn take(&mut self, read: Result<Read, oneshot::error::RecvError>) {
        let answers = self.reading.take().map_or_else(Vec::new, |(it, _)| it);
        let told = match read {
            Ok(Ok((document, changes))) => {
                self.accept(document);
                Ok(serde_json::to_string(&changes).unwrap_or_default())
            }
            Ok(Err(refused)) => {
                let told = self.refuse(&refused);
                self.order(Order::TryAgain);
                Err(told)
            }
            Err(_) => Err("the document could not be read".to_owned()),
        };
        for answer in answers {
            let _ = answer.send(told.clone());
        }
        if !self.asked.is_empty() {
            let asked: Vec<Answer> = self.asked.drain(..).flatten().collect();
            self.reload(None);
            if let Some((answers, _)) = &mut self.reading {
                answers.extend(asked);
            }
        }
    }

    /// A sound document comes into force.
    fn accept(&self, document: Document) {
        {
            let posted = &mut *self.board.lock();
            posted.refused = None;
            let before = posted.accepted.as_ref();
            let same = before.filter(|it| it.document == document);
            tracing::info!(changed = same.is_none(), "document read again");
            posted.accepted = Some(Accepted {
                at: same.map_or_else(clock::now, |it| it.at),
                generation: before.map_or(1, |it| it.generation + 1),
                path: self.config.clone(),
                document,
            });
        }
        self.order(Order::TryAgain);
    }

    /// Another one is refused; why.
    fn refuse(&self, refused: &RefusedDocument) -> String {
        let problems = refused.lines(&self.config);
        let known = self.board.lock().refused.replace(refused.clone());
        if known.as_ref() != Some(refused) {
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!("the operator refuses the document; the one before stays in force");
        }
        problems.join("\n")
    }

    /// Given to the thread that makes passes; it gets there once its pass has ended.
    fn order(&self, order: Order) {
        if let Err(mpsc::error::TrySendError::Full(order)) = self.orders.try_send(order) {
            let orders = self.orders.clone();
            tokio::spawn(async move { orders.send(order).await.is_ok() });
        }
    }

    fn answer(&mut self, question: Question) {
        let Question { request, answer } = question;
        match request {
            Request::Status => {
                let (orders, board) = (self.orders.clone(), self.board.clone());
                tokio::spawn(async move { answer.send(status(&orders, &board).await) });
            }
            Request::InForce => {
                let in_force = self.board.in_force(&self.paths);
                let text = serde_json::to_string(&in_force);
                let _ = answer.send(text.map_err(|error| error.to_string()));
            }
            Request::Reload => self.reload(Some(answer)),
            Request::Issue { name, renew } => {
                let (sender, receiver) = oneshot::channel();
                self.order(Order::Issue(name, renew, sender));
                let board = self.board.clone();
                tokio::spawn(async move {
                    let issued = tokio::time::timeout(ISSUED_WITHIN, receiver).await;
                    let busy = || Err(format!("the operator is busy: {}", doing(&board)));
                    answer.send(issued.map_or_else(|_| busy(), |it| it.unwrap_or_else(|_| busy())))
                });
            }
        }
    }
}

/// A report of a new look, or of the last one.
async fn status(orders: &mpsc::Sender<Order>, board: &Board) -> Result<String, String> {
    let (sender, receiver) = oneshot::channel();
    let looked = async {
        orders.send(Order::Look(sender)).await.ok()?;
        receiver.await.ok()
    };
    let looked = tokio::time::timeout(FRESH_WITHIN, looked).await;
    match board.report(matches!(looked, Ok(Some(())))) {
        Some(report) => serde_json::to_string(&report).map_err(|error| error.to_string()),
        None => Err(format!("nothing was observed yet: {}", doing(board))),
    }
}

/// What the thread that makes passes does.
fn doing(board: &Board) -> String {
    let seconds = board.under_way().unwrap_or(0);
    match board.step() {
        Some(step) => format!("{step} (this pass has taken {seconds} s so far)"),
        None => format!("observing etcd and its disk has taken {seconds} s so far"),
    }
}
