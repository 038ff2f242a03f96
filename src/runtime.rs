//! The one seam between decisions and the world, and the one pass that both homes make.

use core::future::Future;
use core::time::Duration;

use crate::cluster::MemberName;
use crate::observed::{Again, Observed};
use crate::plan::{Act, Plan, Upkeep, plan};
use crate::spec::ClusterSpec;
use crate::status::{Status, status};

/// A home: a host, a Kubernetes cluster, or the simulation.
pub trait Runtime {
    /// What can go wrong while publishing or acting.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Looks. What cannot be seen is a value in [`Observed`]. It is large: by value, each caller's frame would hold it.
    fn observe(&mut self, spec: &ClusterSpec) -> impl Future<Output = Box<Observed>>;

    /// Tells. Called before [`Runtime::execute`], so that a crash leaves the intent visible.
    fn publish(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Reads a member again, right before it is interrupted. Nothing that was read earlier answers.
    fn look_again(
        &mut self,
        spec: &ClusterSpec,
        member: &MemberName,
    ) -> impl Future<Output = Again>;

    /// Acts: upkeep in order, then the interruption, then the change of the member list. A step that fails
    /// keeps none from being taken but those that stand on it ([`crate::plan::Upkeep::needs`]). Permits are
    /// exchanged for what [`Runtime::look_again`] reads. The next pass observes and repairs.
    fn execute(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> impl Future<Output = Result<(), Self::Error>>;
}

/// The steps of one pass that failed.
pub struct Failures<'a, E>(Vec<(&'a Upkeep, E)>);

impl<E> Default for Failures<'_, E> {
    fn default() -> Self {
        Failures(Vec::new())
    }
}

impl<'a, E> Failures<'a, E> {
    /// Whether a step is taken after those that failed.
    pub fn lets(&self, step: &Upkeep) -> bool {
        !self.0.iter().any(|(failed, _)| step.needs(failed))
    }

    /// Whether a member is interrupted after the steps that failed.
    pub fn let_interrupt(&self, act: Act) -> bool {
        !self.0.iter().any(|(failed, _)| act.needs(failed))
    }

    /// Takes note of how a step ended.
    pub fn note(&mut self, step: &'a Upkeep, taken: Result<(), E>) {
        if let Err(error) = taken {
            self.0.push((step, error));
        }
    }

    /// What went wrong, in order.
    pub fn into_errors(self) -> Vec<E> {
        self.0.into_iter().map(|(_, error)| error).collect()
    }
}

/// One pass: observe, plan, publish, act. Returns when to look again.
///
/// # Guarantees
/// Level-triggered: each pass begins with what is observed, so a pass may be repeated, lost or cut
/// anywhere. At most one member is interrupted and at most one membership change is made, each with a
/// [`crate::plan::permit::Permit`].
///
/// # Errors
/// Those of `publish` and `execute`. The caller logs them and makes another pass. Who cannot be told
/// keeps nobody from acting: etcd is looked after with a full `/run`, too.
pub async fn reconcile<R: Runtime>(
    runtime: &mut R,
    spec: &ClusterSpec,
) -> Result<Duration, R::Error> {
    let observed = runtime.observe(spec).await;
    let plan = plan(spec, &observed);
    let status = status(spec, &observed, &plan);
    let told = runtime.publish(spec, &observed, &status).await;
    let requeue_after = plan.requeue_after;
    runtime.execute(spec, &observed, plan).await?;
    told?;
    Ok(requeue_after)
}
