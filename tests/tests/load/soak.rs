//! The soak in short; `just soak SECONDS SEED` runs it for longer.

use std::time::Duration;

use tests::soak::{self, Plan};

#[test]
fn half_a_minute_of_everything() {
    let _alone = crate::alone();
    let plan = Plan::new(Duration::from_secs(25), 1, Duration::from_secs(7));
    let report = soak::run(plan);
    tests::note(&report.to_string());
    assert!(report.faults.is_empty(), "{} faults, see above", report.faults.len());
    assert!(report.kills > 2 && report.stops > 0 && report.lives.len() > 2, "{report}");
    assert!(report.resumed > 0 && report.served > 1000, "{report}");
}
