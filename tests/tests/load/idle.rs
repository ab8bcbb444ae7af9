//! Memory of idle TLS connections, with few of them; `just idle 20000` measures many.

use tests::idle;

/// Well above what is measured (docs/limits.md), well below a buffer for each connection.
const BYTES_EACH_MAX: u64 = 14 * 1024;

#[test]
fn an_idle_tls_connection_holds_no_buffer() {
    let _alone = crate::alone();
    let idle = idle::measure(500);
    tests::note(&idle.to_string());
    assert!(idle.private_bytes_each < BYTES_EACH_MAX, "{idle}");
}
