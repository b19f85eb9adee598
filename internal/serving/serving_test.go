package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
)

// TestMetricsOfRealServer: the figures of a real server, by a hundred scrapes at a time, and by promtool.
func TestMetricsOfRealServer(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	w := serve(t, s, false, "--wait-event-capture", "stats", "--wait-event-method", "sampled")
	sleeper := s.Connect(t, s.User, "postgres")
	go func() { _ = sleeper.PgConn().Exec(t.Context(), "SELECT pg_sleep(1000)").Close() }()
	pgtest.Wait(t, "the sleeper", func() bool {
		n, _ := w.metric(`active_sessions{backend_type="client backend",event="PgSleep",type="Timeout"}`)
		return n == 1
	})
	conn := s.Connect(t, s.User, "postgres")
	var text string
	err := conn.QueryRow(t.Context(), "SELECT pg_get_backtrace($1)", sleeper.PgConn().PID()).Scan(&text)
	if err != nil || !strings.Contains(text, "pg_sleep") {
		t.Fatalf("%v: %s", err, text)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_get_backtrace(1)"); err != nil { // a warning
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_request_backtrace($1::int)", sleeper.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		`requests_total{call="queued"}`: 1, `requests_total{call="waiting"}`: 2,
		`failures_total{sqlstate="01000"}`: 1, "server_up": 1, "server_readable": 1,
		`sessions{state="active"}`: 1, `wait_timing_info{method="sampled"}`: 1,
		"queue_waiting": 0, fmt.Sprintf(`server_info{data_directory=%q,version="%d"}`, s.DataDir, s.Major): 1,
	} {
		pgtest.Wait(t, fmt.Sprintf("%s is %v", name, want), func() bool {
			got, found := w.metric(name)
			return found && got == want
		})
	}
	pgtest.Wait(t, "two captures, and a pause for each stop", func() bool {
		stops, _ := w.metric(`captures_total{engine="stop"}`)
		looks, _ := w.metric(`captures_total{engine="blocked"}`)
		pauses, _ := w.metric("pause_seconds_count")
		return stops+looks == 2 && pauses == stops
	})
	pgtest.Wait(t, "waiting time", func() bool {
		seconds, _ := w.metric(`wait_seconds_total{event="PgSleep",type="Timeout"}`)
		return seconds > 0
	})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if status, body, err := get(t.Context(), "http://"+w.address+"/metrics"); err != nil || status != http.StatusOK {
				t.Errorf("%d, %v: %s", status, err, body)
			}
		})
	}
	wg.Wait()
	if promtool, err := exec.LookPath("promtool"); err == nil {
		_, body, _ := get(t.Context(), "http://"+w.address+"/metrics")
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(body)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
	checkRestart(t, s, w)
}

// checkRestart follows the metrics through a restart of the server.
func checkRestart(t *testing.T, s *pgtest.Server, w *worker) {
	t.Helper()
	s.Stop("fast")
	pgtest.Wait(t, "server_up is 0", func() bool {
		up, found := w.metric("server_up")
		return found && up == 0
	})
	if status, _, err := get(t.Context(), "http://"+w.address+"/healthz"); err != nil || status != http.StatusOK {
		t.Errorf("health while the server is down: %d, %v", status, err)
	}
	s.Start()
	pgtest.Wait(t, "server_up is 1 again", func() bool {
		up, _ := w.metric("server_up")
		return up == 1
	})
}

// TestPrometheus: a real Prometheus scrapes a worker, with a token and with native histograms.
func TestPrometheus(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no Prometheus: install the package prometheus")
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a-token-for-the-scraper\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Root can load programs into the kernel, so waits are counted if the host allows it.
	root := os.Geteuid() == 0
	w := serve(t, s, root, "--listen-token-file", readable(t, s, token), "--wait-event-capture", "stats")
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: pg_stat_backtrace
  authorization: {credentials_file: %s}
  static_configs: [{targets: [%q]}]
`, token, w.address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", pgtest.FreePort(t))
	startProgram(t, prometheus, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", address, "--enable-feature=native-histograms")
	busy(t, s)
	query := func(expression string) (results []any) {
		status, body, err := get(t.Context(), "http://"+address+"/api/v1/query?query="+url.QueryEscape(expression))
		var answer struct {
			Data struct {
				Result []any `json:"result"`
			} `json:"data"`
		}
		if err != nil || status != http.StatusOK || json.Unmarshal([]byte(body), &answer) != nil {
			return nil
		}
		return answer.Data.Result
	}
	counted := strings.Contains(w.text(), `"method":"exact"`) || strings.Contains(w.text(), `"method":"blocked"`)
	expressions := []string{
		`up{job="pg_stat_backtrace"} == 1`, `pg_stat_backtrace_server_up == 1`,
		`sum(pg_stat_backtrace_active_sessions) > 0`, `rate(pg_stat_backtrace_cpu_seconds_total[1m]) > 0`,
		`pg_stat_backtrace_build_info`, `pg_stat_backtrace_wait_seconds_total{type="Activity"} > 0`,
	}
	if counted {
		expressions = append(expressions,
			`histogram_quantile(0.9, rate(pg_stat_backtrace_wait_event_duration_seconds{type="Activity"}[1m])) > 0`,
			`histogram_count(pg_stat_backtrace_wait_duration_seconds{type="Activity"}) > 0`)
	} else {
		t.Log("waits are not counted here: native histograms of waits are not tested with a real Prometheus")
	}
	for _, expression := range expressions {
		pgtest.Wait(t, expression, func() bool { return len(query(expression)) > 0 })
	}
}

// readable makes a file readable for the worker: as root it becomes the server's user before it reads it.
func readable(t *testing.T, s *pgtest.Server, path string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return path
	}
	uid, gid := s.OSUser()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(s.SocketDir, filepath.Base(path))
	if err := os.WriteFile(place, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(place, uid, gid); err != nil {
		t.Fatal(err)
	}
	return place
}

// TestFilesOfRoot: a worker that starts as root uses files that the server's user cannot read. It keeps
// their content after a change, and logs that.
func TestFilesOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the worker can see a change, but not the new content
		t.Fatal(err)
	}
	token, headers := filepath.Join(dir, "token"), filepath.Join(dir, "headers")
	for path, content := range map[string]string{token: "a-token-that-root-has\n", headers: "X-Scope-OrgID: a\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := serve(t, s, true, "--listen-token-file", token,
		"--export-pyroscope", "http://127.0.0.1:1", "--export-header-file", headers)
	w.saying(`"files":\["[^"]*token","[^"]*headers"\]`)
	url := "http://any:a-token-that-root-has@" + w.address + "/metrics"
	if status, body, err := get(t.Context(), url); err != nil || status != http.StatusOK {
		t.Errorf("%d, %v: %s", status, err, body)
	}
	if err := os.WriteFile(token, []byte("another-token-that-root-has\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "a line about the changed token file", func() bool {
		if status, body, err := get(t.Context(), url); err != nil || status != http.StatusOK {
			t.Errorf("after a change: %d, %v: %s", status, err, body)
		}
		return strings.Contains(w.text(), "its last content stays in use")
	})
}

// profiling returns a worker that can make profiles of a server, or skips the test.
func profiling(t *testing.T) (*worker, *pgtest.Server) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("profiles need root, or CAP_BPF and CAP_PERFMON")
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"compute_query_id = on"}})
	w := serve(t, s, true)
	canProfile(t, w)
	return w, s
}

// canProfile skips a test where the worker cannot make profiles.
func canProfile(t *testing.T, w *worker) {
	t.Helper()
	status, body, err := get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=0.1")
	if err != nil {
		t.Fatal(err)
	}
	if status == http.StatusServiceUnavailable {
		t.Skipf("no profiles on this host: %s", body)
	}
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, body)
	}
}

// TestProfile: the program of go tool pprof gets a profile of a busy server, and filters have their effect. The profiles are
// short. On a busy machine a short one may have no samples, and the test takes another.
func TestProfile(t *testing.T) {
	// The Go distribution has no built pprof: "go tool pprof" compiles it first. The server is not busy meanwhile.
	tool := filepath.Join(t.TempDir(), "pprof")
	if out, err := exec.Command("go", "build", "-o", tool, "cmd/pprof").CombinedOutput(); err != nil {
		t.Fatalf("building pprof: %v\n%s", err, out)
	}
	w, s := profiling(t)
	pid := busy(t, s)
	base := "http://" + w.address + "/debug/pprof/profile?seconds="
	// Without -timeout it waits for some eight seconds, which a busy machine can need.
	pprof := exec.Command(tool, "-timeout", "300", "-top", base+"2")
	pprof.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := pprof.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PostgresMain") {
		t.Errorf("%v\n%s", err, out)
	}
	for parameters, samples := range map[string]bool{
		"":                                       true,
		fmt.Sprintf("&pid=%d", pid):              true,
		fmt.Sprintf("&pid=1,%d&query_id=1", pid): false,
		"&query_id=1":                            false,
		"&mode=wall":                             true,
	} {
		pgtest.Wait(t, "samples with "+parameters, func() bool {
			status, body, err := get(t.Context(), base+"0.3"+parameters)
			p, parseErr := profile.ParseData([]byte(body))
			if err != nil || parseErr != nil || status != http.StatusOK {
				t.Fatalf("%s: %d, %v, %v: %q", parameters, status, err, parseErr, body[:min(len(body), 200)])
			}
			if len(p.Sample) > 0 && !samples {
				t.Errorf("%s: %d samples", parameters, len(p.Sample))
			}
			return len(p.Sample) > 0 || !samples
		})
	}
	if status, body, err := get(t.Context(), base+"60&pid=1"); err != nil || status != http.StatusNotFound ||
		!strings.Contains(body, "the server has no such process: 1") {
		t.Errorf("a process of another program: %d, %v: %s", status, err, body)
	}
	checkFormats(t, w)
	if n, _ := w.metric(`profiles_total{mode="cpu"}`); n < 5 {
		t.Errorf("%v profiles were counted", n)
	}
}

// checkFormats reads profiles in other formats than pprof's.
func checkFormats(t *testing.T, w *worker) {
	t.Helper()
	base := "http://" + w.address + "/debug/pprof/profile?seconds=0.3&format="
	for format, want := range map[string]string{
		"html": "<!doctype html>", "text": "postgresmain", "folded": ";postgresmain", "speedscope": `"postgresmain"`, "json": `"postgresmain"`,
		"html&query_id=1": "<!doctype html>", // without samples
	} {
		pgtest.Wait(t, want+" with "+format, func() bool {
			status, body, err := get(t.Context(), base+format)
			if err != nil || status != http.StatusOK {
				t.Fatalf("%s: %d, %v: %q", format, status, err, body[:min(len(body), 500)])
			}
			return strings.Contains(strings.ToLower(body), want)
		})
	}
}

// TestScraperDisconnects: the profile stops, and the next scraper gets one.
func TestScraperDisconnects(t *testing.T) {
	w, _ := profiling(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _, _ = get(ctx, "http://"+w.address+"/debug/pprof/profile?seconds=300") })
	pgtest.Wait(t, "a profile runs", func() bool { n, _ := w.metric("profiles_running"); return n == 1 })
	status, body, err := get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=1")
	if err != nil || status != http.StatusTooManyRequests {
		t.Errorf("a profile beside another: %d, %v: %s", status, err, body)
	}
	cancel()
	wg.Wait()
	pgtest.Wait(t, "no profile runs", func() bool { n, _ := w.metric("profiles_running"); return n == 0 })
	pgtest.Wait(t, "room for a profile", func() bool { // the worker counts a profile as ended a moment before
		status, body, err = get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=0.1")
		return err != nil || status != http.StatusTooManyRequests
	})
	if err != nil || status != http.StatusOK {
		t.Errorf("a profile afterwards: %d, %v: %s", status, err, body)
	}
}

// TestKilledDuringProfile: the server works after the worker was killed in the middle of a profile, and another worker
// makes profiles.
func TestKilledDuringProfile(t *testing.T) {
	w, s := profiling(t)
	busy(t, s)
	go func() { _, _, _ = get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=60") }()
	pgtest.Wait(t, "a profile runs", func() bool { n, _ := w.metric("profiles_running"); return n == 1 })
	if err := w.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.done <- <-w.done
	s.Exec(t, "SELECT count(*) FROM pg_class")
	next := serve(t, s, true)
	pgtest.Wait(t, "a profile of the next worker has samples", func() bool {
		status, body, err := get(t.Context(), "http://"+next.address+"/debug/pprof/profile?seconds=0.3")
		p, parseErr := profile.ParseData([]byte(body))
		if err != nil || status != http.StatusOK || parseErr != nil {
			t.Fatalf("%d, %v, %v: %q", status, err, parseErr, body[:min(len(body), 200)])
		}
		return len(p.Sample) > 0
	})
}

// TestWithoutRights: a worker that may not load programs into the kernel reports it, and serves everything else.
func TestWithoutRights(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	w := serve(t, s, false)
	status, body, err := get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=1")
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("%d, %v: %s", status, err, body)
	}
	for _, want := range []string{"cannot make a profile", "CAP_BPF and CAP_PERFMON", "capture -D DIRECTORY --nonstop"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if n, _ := w.metric("profile_failures_total"); n != 1 {
		t.Errorf("%v failures", n)
	}
	if status, body, err := get(t.Context(), "http://"+w.address+"/"); err != nil || status != http.StatusOK ||
		!strings.Contains(body, "/metrics") {
		t.Errorf("index: %d, %v: %s", status, err, body)
	}
}

// TestPortInUse: a worker whose address is taken answers SQL, and listens when the address is free.
func TestPortInUse(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	w := launch(t, s, false, "--listen", other.Addr().String())
	w.saying(`address already in use.*cannot listen`)
	w.saying(`"ready"`)
	conn := s.Connect(t, s.User, "postgres")
	sleeper := s.Connect(t, s.User, "postgres")
	var text string
	err = conn.QueryRow(t.Context(), "SELECT pg_get_backtrace($1)", sleeper.PgConn().PID()).Scan(&text)
	if err != nil || text == "" {
		t.Errorf("%v: %s", err, text)
	}
	_ = other.Close()
	w.saying(`"listening"`)
}

// TestUnixSocket: only the server's user reaches the socket, and it is gone with the worker.
func TestUnixSocket(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	path := filepath.Join(s.SocketDir, "worker")
	w := launch(t, s, false, "--listen", "unix:"+path)
	w.saying(`"listening"`)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}}
	pgtest.Wait(t, "the worker is healthy", func() bool { // it is when it is connected
		answer, err := client.Get("http://worker/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	client.CloseIdleConnections()
	_ = w.Process.Signal(os.Interrupt)
	w.done <- <-w.done
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestWrongOptions: the program refuses options that would expose the listener, with exit status 2.
func TestWrongOptions(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"--listen", "0.0.0.0:9188"}, "needs a token"},
		{[]string{"--listen", "db1:9188"}, "give an IP address"},
		{[]string{"--listen", "9188"}, "give IP:PORT"},
		{[]string{"--listen-token-file", "/x"}, "need --listen"},
		{[]string{"--listen", "127.0.0.1:9188", "--listen-tls-cert", "/x"}, "need each other"},
	} {
		status, output := exitStatus(t, append([]string{"worker", "-D", "/nowhere"}, c.arguments...)...)
		if status != 2 || !strings.Contains(output, c.want) {
			t.Errorf("%v: status %d: %s", c.arguments, status, output)
		}
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	open := filepath.Join(s.SocketDir, "token")
	if err := os.WriteFile(open, []byte("a-token-that-all-read\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := s.AsServerUser(exec.Command(program, "worker", "-D", s.DataDir, "--listen", "127.0.0.1:0",
		"--listen-token-file", open))
	timer := time.AfterFunc(pgtest.Patience, func() { _ = command.Process.Kill() })
	defer timer.Stop()
	out, err := command.CombinedOutput()
	if err == nil || command.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "must have no access") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestQueueLength: a worker's role without pg_read_all_stats serves the queue, and its length is not shown.
func TestQueueLength(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, `CREATE EXTENSION pg_stat_backtrace; CREATE ROLE backtracer LOGIN;
		GRANT EXECUTE ON FUNCTION backtrace.claim, backtrace.finish, backtrace.journal, backtrace.prune TO backtracer`)
	w := serve(t, s, false, s.DSN("backtracer", "postgres"))
	w.saying("serving the queue")
	admin := s.Connect(t, s.User, "postgres")
	var id int64
	if err := admin.QueryRow(t.Context(), "SELECT pg_request_backtrace(pg_backend_pid())").Scan(&id); err != nil {
		t.Fatal(err)
	}
	w.saying("queued request")
	if _, found := w.metric("queue_waiting"); found {
		t.Error("a length is shown although it is not known")
	}
	s.Exec(t, "GRANT pg_read_all_stats TO backtracer")
	pgtest.Wait(t, "the length of the queue", func() bool {
		waiting, found := w.metric("queue_waiting")
		return found && waiting == 0
	})
	if text := w.text(); strings.Contains(text, "the queue is not served") {
		t.Error("the queue was not served for a while")
	}
}

// TestSessionsLost: when the server refuses the worker's role, the length of the queue is not shown, and metrics and
// /readyz show the loss. The worker stays alive for the probe of an orchestrator.
func TestSessionsLost(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace; CREATE ROLE backtracer SUPERUSER LOGIN")
	w := serve(t, s, false, s.DSN("backtracer", "postgres"))
	lost := func(kind string) float64 {
		seconds, found := w.metric(fmt.Sprintf(`session_lost_seconds{session=%q}`, kind))
		if !found {
			t.Fatal("no figure")
		}
		return seconds
	}
	whole := func() bool {
		waiting, found := w.metric("queue_waiting")
		return found && waiting == 0 && lost("main") == 0 && lost("queue") == 0
	}
	pgtest.Wait(t, "the worker has its sessions", whole)
	health := func(path string, want int, text string) {
		t.Helper()
		status, body, err := get(t.Context(), "http://"+w.address+path)
		if err != nil || status != want || !strings.Contains(body, text) {
			t.Errorf("%s: %d, %v: %q", path, status, err, body)
		}
	}
	health("/readyz", http.StatusOK, "ok\n")
	hba := filepath.Join(s.DataDir, "pg_hba.conf")
	before, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	rules := "local all backtracer reject\nhost all backtracer all reject\n" + string(before)
	if err := os.WriteFile(hba, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "SELECT pg_reload_conf()")
	admin := s.Connect(t, s.User, "postgres")
	pgtest.Wait(t, "the loss is shown", func() bool {
		_, err := admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'backtracer'")
		_, found := w.metric("queue_waiting")
		return err == nil && !found && lost("main") > 0 && lost("queue") > 0
	})
	for _, name := range []string{"queue_claimed", "queue_oldest_seconds"} {
		if _, found := w.metric(name); found {
			t.Errorf("%s is shown", name)
		}
	}
	health("/healthz", http.StatusOK, "no session in the server")
	health("/readyz", http.StatusServiceUnavailable, "no session for a queue")
}
