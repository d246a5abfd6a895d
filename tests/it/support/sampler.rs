//! How many backends a tenant has at most, as the server counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::tenant::Tenant;

/// Counts a tenant's backends, hundreds of times a second, until it is dropped.
pub(crate) struct Sampler {
    most: Arc<AtomicI64>,
    samples: Arc<AtomicU64>,
    sampling: AbortHandle,
}

impl Sampler {
    pub(crate) async fn start(tenant: &Tenant) -> Self {
        let admin = tenant.another_admin().await.unwrap();
        let name = tenant.name.clone();
        let (most, samples) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
        let (seen, count) = (Arc::clone(&most), Arc::clone(&samples));
        let sampling = tokio::spawn(async move {
            let sql = "SELECT count(*) FROM pg_stat_activity \
                WHERE usename = $1 OR application_name LIKE $1 || '/%'";
            let statement = admin.prepare(sql).await.unwrap();
            loop {
                let backends = admin.query_one(&statement, &[&name]).await.unwrap().get(0);
                seen.fetch_max(backends, Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
                // It shares its cores with the storm that it watches.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        Self {
            most,
            samples,
            sampling: sampling.abort_handle(),
        }
    }

    pub(crate) fn assert_never_above(&self, budget: i64) {
        let (most, samples) = (
            self.most.load(Ordering::SeqCst),
            self.samples.load(Ordering::SeqCst),
        );
        println!("the most backends seen: {most} of {budget}, in {samples} samples");
        assert!(
            !self.sampling.is_finished() && samples > 50,
            "{samples} samples are not enough"
        );
        assert!(
            (1..=budget).contains(&most),
            "{most} backends, budget {budget}"
        );
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.sampling.abort();
    }
}
