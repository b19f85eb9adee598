#!/usr/bin/env bash
# fleet.sh: how far one Prometheus goes. Starts a real server under load and a worker, and copies the worker's metrics
# to FLEET_SERVERS (500) endpoints on loopback. One Prometheus scrapes them for FLEET_SECONDS (180), at an interval of
# FLEET_INTERVAL (15s): first all, then with FLEET_STUCK (5) endpoints that never answer. Prints scrape times, series,
# memory and disk.

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/packages.sh
source "$TOP/scripts/packages.sh"
# shellcheck source=scripts/postgresql.sh
source "$TOP/scripts/postgresql.sh"

SERVERS=${FLEET_SERVERS:-500} LASTING=${FLEET_SECONDS:-180} INTERVAL=${FLEET_INTERVAL:-15s} STUCK=${FLEET_STUCK:-5}
PORT=${FLEET_PORT:-20000}
have prometheus || die "prometheus is not installed" "apt-get install prometheus"
have curl || die "curl is not installed"
make_workdir
build_program
"$PROGRAM" worker --help | grep -q -- --listen || die "this worker has no option --listen"
prepare_postgresql
chmod 755 "$WORK"

say "One real server, with waits and failures"
start_server main
sql -c "CREATE EXTENSION pg_stat_backtrace"
WORKER_ADDRESS=127.0.0.1:$((PORT - 1))
# As root, so that the worker can time wait events exactly.
"$PROGRAM" worker -D "$PGDATA" --listen "$WORKER_ADDRESS" --wait-event-capture stats >"$WORK/worker.log" 2>&1 &
stop_at_end $!
metrics() { curl -sf "http://$WORKER_ADDRESS/metrics"; }
until_true 30 "the worker's metrics" metrics >/dev/null
bench=$(dirname "$PSQL_PATH")/pgbench
if [[ -x $bench ]]; then
	quietly as_server "$bench" -i -q postgres
	quietly as_server "$bench" -c 8 -T 10 postgres
fi
sql -c "SELECT count(pg_get_backtrace(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()" >/dev/null
metrics >"$WORK/metrics.txt"
series=$(grep -cv '^#' "$WORK/metrics.txt")
note "a busy server has $series series, $(wc -c <"$WORK/metrics.txt") bytes a scrape"

"$GO" build -C "$TOP/tools" -o "$WORK/fleetsim" ./fleetsim

# round STUCK: simulate, scrape, report.
round() {
	local stuck=$1 sim prom base=http://127.0.0.1:$((PORT - 2)) began used rss
	"$WORK/fleetsim" -servers "$SERVERS" -port "$PORT" -stuck "$stuck" "$WORK/metrics.txt" >"$WORK/targets" &
	sim=$!
	stop_at_end "$sim"
	until_true 30 "the simulated servers" enough_targets
	{
		printf 'global: {scrape_interval: %s, scrape_timeout: 10s, evaluation_interval: %s}\nrule_files: [%s]\n' \
			"$INTERVAL" "$INTERVAL" "$TOP/packaging/grafana/alerts.yaml"
		printf 'scrape_configs:\n  - job_name: pg_stat_backtrace\n    static_configs:\n      - targets:\n'
		sed 's/.*/          - "&"/' "$WORK/targets"
	} >"$WORK/prometheus.yml"
	rm -rf "$WORK/data"
	prometheus --config.file "$WORK/prometheus.yml" --storage.tsdb.path "$WORK/data" --log.level error \
		--web.enable-admin-api --web.listen-address "${base#http://}" >"$WORK/prometheus.log" 2>&1 &
	prom=$!
	stop_at_end "$prom"
	sleep "$LASTING"
	used=$(awk '{print ($14 + $15) / 100}' "/proc/$prom/stat")
	rss=$(awk '/VmRSS/ {print int($2 / 1024)}' "/proc/$prom/status")
	say "$SERVERS servers, $stuck of them never answer; one Prometheus, every $INTERVAL, for $LASTING s"
	value() { curl -sG "$base/api/v1/query" --data-urlencode "query=$1" | sed -n 's/.*"value":\[[0-9.]*,"\([^"]*\)"\].*/\1/p'; }
	note "targets up:             $(value 'sum(up)')"
	note "scrape, median:         $(value 'quantile(0.5, scrape_duration_seconds and on(instance) (up == 1))') s"
	note "scrape, 99 of 100:      $(value 'quantile(0.99, scrape_duration_seconds and on(instance) (up == 1))') s"
	note "scrapes per server that worked, fewest: $(value "min(count_over_time(scrape_duration_seconds[${LASTING}s]) and on(instance) (up == 1))")"
	note "series:                 $(curl -s "$base/api/v1/status/tsdb" | sed -n 's/.*"numSeries":\([0-9]*\).*/\1/p')"
	note "samples a second:       $(value 'sum(scrape_samples_scraped)') every $INTERVAL"
	note "Prometheus:             $rss MB resident, $used s of processor time"
	note "write-ahead log:        $(du -sm "$WORK/data/wal" | cut -f 1) MB"
	# A snapshot writes the samples as a compressed block, as they stay on disk.
	curl -sX POST "$base/api/v1/admin/tsdb/snapshot" >/dev/null
	note "on disk, compressed:    $(du -sk "$WORK/data/snapshots" | cut -f 1) kB for $(value "sum(sum_over_time(scrape_samples_scraped[${LASTING}s]))") samples"
	began=$(date +%s%N)
	value 'topk(50, sum by (instance) (pg_stat_backtrace_active_sessions))' >/dev/null
	note "the fleet's main query: $((($(date +%s%N) - began) / 1000000)) ms"
	kill "$prom" "$sim"
	wait "$prom" "$sim" || true
}
enough_targets() { [[ $(wc -l <"$WORK/targets") -eq $SERVERS ]]; }

round 0
round "$STUCK"
