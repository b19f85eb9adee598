package repository

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// absent are metrics that an idle worker on a host without BPF need not have. Queries of them must be valid, but may
// have no result.
var absent = []string{
	"wait_", "waits_", "failures_total", "profiles_total", "captures_total", "requests_total", "queue_",
}

// TestQueries runs every query of the dashboards in a Prometheus that scrapes a worker.
func TestQueries(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed: ", err)
	}
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	program := filepath.Join(filepath.Dir(s.DataDir), "pg_stat_backtrace") // where the server's user may execute it
	if err := pgtest.BuildProgram(program); err != nil {
		t.Fatal(err)
	}
	worker, prom := address(t), address(t)
	start(t, s.AsServerUser(exec.Command(
		program, "worker", "-D", s.DataDir, s.DSN(s.User, "postgres"),
		"--listen", worker, "--wait-event-capture", "stats", "--log-format", "json")))
	pgtest.Wait(t, "the worker's metrics", func() bool { return get(t, "http://"+worker+"/metrics") != "" })

	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: pg_stat_backtrace
    static_configs: [{targets: [%q]}]
`, absolute(t, dashboardFolder+"/alerts.yaml"), worker), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, exec.Command(
		prometheus, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", prom, "--enable-feature", "native-histograms"))
	q := prober{t, "http://" + prom, strings.NewReplacer("$__rate_interval", "10s", "$job", "pg_stat_backtrace",
		"$instance", worker)}
	pgtest.Wait(t, "three scrapes", func() bool {
		return q.number("count_over_time(pg_stat_backtrace_server_up[1m])") >= 3
	})
	block(t, s)
	s.Exec(t, "SELECT pg_get_backtrace(pid) FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
	pgtest.Wait(t, "a waiting backend is counted", func() bool {
		return q.number(`sum(pg_stat_backtrace_active_sessions{type="Lock"})`) >= 1
	})
	pgtest.Wait(t, "the capture is counted", func() bool { return q.number("sum(pg_stat_backtrace_captures_total)") >= 1 })

	for file, d := range load(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				results, err := q.run(target.Expr)
				if err != nil {
					t.Errorf("%s: %s: %s: %v", file, p.Title, target.Expr, err)
				} else if results == 0 && !mayBeAbsent(target.Expr) {
					// A scrape may have come too late for some figures, on a crowded machine.
					pgtest.Wait(t, file+": "+p.Title+": a result of "+target.Expr, func() bool {
						results, err := q.run(target.Expr)
						return err == nil && results > 0
					})
				}
			}
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
	}
	pgtest.Wait(t, "every rule is evaluated", func() bool {
		if err := json.Unmarshal([]byte(get(t, q.base+"/api/v1/rules")), &rules); err != nil || len(rules.Data.Groups) == 0 {
			return false
		}
		for _, r := range rules.Data.Groups[0].Rules {
			if r.Health == "unknown" {
				return false
			}
		}
		return true
	})
	for _, r := range rules.Data.Groups[0].Rules {
		if r.Health != "ok" || r.State == "firing" {
			t.Errorf("alert %s: %s, %s %s", r.Name, r.State, r.Health, r.LastError)
		}
	}
}

// block makes a backend wait for the lock of another until the test ends.
func block(t *testing.T, s *pgtest.Server) {
	t.Helper()
	const lock = "SELECT pg_advisory_lock(1)"
	holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	if _, err := holder.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = waiter.Exec(ctx, lock) // ends when the test does
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func mayBeAbsent(expr string) bool {
	for _, name := range absent {
		if strings.Contains(expr, "pg_stat_backtrace_"+name) {
			return true
		}
	}
	return false
}

// prober sends queries to a Prometheus.
type prober struct {
	t         *testing.T
	base      string
	variables *strings.Replacer
}

type answer struct {
	Status, Error string
	Data          struct {
		Result []struct{ Value [2]any }
	}
}

func (p prober) ask(expr string) answer {
	var a answer
	text := get(p.t, p.base+"/api/v1/query?query="+url.QueryEscape(p.variables.Replace(expr)))
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		a.Status = err.Error()
	}
	return a
}

// run returns the number of series of a query.
func (p prober) run(expr string) (int, error) {
	a := p.ask(expr)
	if a.Status != "success" {
		return 0, fmt.Errorf("%s: %s", a.Status, a.Error)
	}
	return len(a.Data.Result), nil
}

// number returns the value of a query with one series.
func (p prober) number(expr string) (n float64) {
	if a := p.ask(expr); len(a.Data.Result) == 1 {
		_, _ = fmt.Sscan(fmt.Sprint(a.Data.Result[0].Value[1]), &n)
	}
	return n
}

// get returns the body of an answer, also of an error, or nothing if there is no answer.
func get(t *testing.T, address string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(address)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	data, _ := io.ReadAll(response.Body)
	return string(data)
}

// start starts a process that ends with the test.
func start(t *testing.T, command *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			t.Log(read(t, log.Name()))
		}
		_ = log.Close()
	})
}

// address returns a free address on loopback.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
