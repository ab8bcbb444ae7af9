# Day-to-day recipes; `just` alone lists them. (`pip install rust-just` or a package brings the tool.)

default:
    @just --list

# Debug build of everything, and the binaries as they are tested.
build:
    cargo build --workspace
    cargo build -p http-daemon -p control-cli -p l4-daemon

# All tests, as CI runs them.
test *NAMES:
    ./test {{NAMES}}

# Units, architecture and a few end-to-end families.
quick:
    ./test --quick

# Formats the whole workspace.
fmt:
    cargo fmt --all

# What CI checks before the tests.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    .ci/deny
    cargo test -p tests --test arch

# Benches of one crate with its figures, such as `just bench http-proxy`.
bench CRATE *ARGUMENTS:
    cargo bench -p {{CRATE}} --bench '*' {{ARGUMENTS}}

# Every bench for a few rounds, to see that it works.
bench-smoke:
    SHARD_BENCH_SMOKE=1 cargo test --workspace --exclude tests --bench '*'

# shard-proxy as it is meant to be shipped, optimised by a profile of itself: target/pgo/shard-proxy (docs/decisions/0011).
release *ARGUMENTS:
    shard-bench/peers/release {{ARGUMENTS}}

# shard-proxy beside nginx, HAProxy and Envoy; writes the table in docs/performance.md (see shard-bench/peers/run --help).
bench-peers *ARGUMENTS:
    cargo build --release -p shard-bench
    shard-bench/peers/release
    shard-bench/peers/run {{ARGUMENTS}}

# Fuzzes one target of one crate for some seconds, such as `just fuzz http/wire path 600`. Needs cargo-fuzz.
fuzz CRATE TARGET SECONDS="60":
    mkdir -p {{CRATE}}/fuzz/target/found/{{TARGET}}
    cd {{CRATE}} && RUSTC_BOOTSTRAP=1 cargo fuzz run -s none {{TARGET}} fuzz/target/found/{{TARGET}} fuzz/corpus/{{TARGET}} -- -max_total_time={{SECONDS}} -max_len=4096 -timeout=10

# Third-party suites through the proxy: h2spec, Autobahn, Chromium, gRPC (see tests/suites/README.md).
suites:
    tests/suites/h2spec
    tests/suites/autobahn
    tests/suites/browser
    tests/suites/grpc

# The soak: all kinds of traffic under reloads, hot restarts and dying backends, such as `just soak 600 1`. Debug build,
# whose assertions count.
soak SECONDS SEED="1" RESTART_SECONDS="60":
    cargo build -p http-daemon -p control-cli
    cargo build -p tests --bins
    nice -n 5 target/debug/soak {{SECONDS}} {{SEED}} {{RESTART_SECONDS}}

# Memory of idle TLS connections on one core, release build. COUNT connections need three times as many descriptors.
idle COUNT="20000":
    cargo build --release -p http-daemon
    cargo build -p tests --bins
    SHARD_BIN_DIR=target/release target/debug/idle {{COUNT}}

# The tour.
demo *ARGUMENTS:
    ./demo {{ARGUMENTS}}

# Runs the proxy on a config directory.
run CONFIG:
    cargo run --release -p http-daemon -- --config {{CONFIG}}
