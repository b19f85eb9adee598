package serving

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// needRoot skips a test of pushed profiles, which need root, or CAP_BPF and CAP_PERFMON.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("profiles need root, or CAP_BPF and CAP_PERFMON")
	}
}

// TestExport: a worker pushes profiles to both types of receivers, and its metrics count them.
func TestExport(t *testing.T) {
	needRoot(t)
	var mu sync.Mutex
	got := map[string]int{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		compressed, err := gzip.NewReader(r.Body)
		if err == nil {
			_, err = io.Copy(io.Discard, io.LimitReader(compressed, 64<<20))
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil && r.Header.Get("X-Scope-Orgid") == "team-a" {
			got[r.URL.Path]++
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	}))
	t.Cleanup(receiver.Close)
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	headers := filepath.Join(s.SocketDir, "headers")
	if err := os.WriteFile(headers, []byte("X-Scope-OrgID: team-a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	uid, gid := s.OSUser()
	if err := os.Chown(headers, uid, gid); err != nil {
		t.Fatal(err)
	}
	w := serve(t, s, true, "--export-pyroscope", receiver.URL, "--export-otlp", receiver.URL, "--export-interval", "5s",
		"--export-header-file", headers, "--export-spool-dir", s.SocketDir)
	canProfile(t, w)
	busy(t, s)
	pgtest.Wait(t, "both receivers have profiles", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return got["/push.v1.PusherService/Push"] > 0 && got["/v1development/profiles"] > 0
	})
	for _, kind := range []string{"pyroscope", "otlp"} {
		pgtest.Wait(t, kind+" is counted", func() bool {
			n, _ := w.metric(fmt.Sprintf("export_profiles_total{receiver=%q}", kind))
			return n > 0
		})
	}
	// A profile for a client runs beside the pushed ones.
	status, body, err := get(t.Context(), "http://"+w.address+"/debug/pprof/profile?seconds=1")
	if err != nil || status != http.StatusOK {
		t.Errorf("%d, %v: %s", status, err, body)
	}
}

// receivers returns the program with real receivers. The program is large, so the test builds it only on request.
func receivers(t *testing.T) string {
	t.Helper()
	value := os.Getenv("PGSB_TEST_RECEIVERS")
	switch value {
	case "":
		t.Skip("set PGSB_TEST_RECEIVERS=build to build real receivers, which takes minutes, or to the path of the program")
	case "build":
		path := filepath.Join(t.TempDir(), "receivers")
		build := exec.Command("go", "build", "-o", path, ".")
		build.Dir = "../../tools/receivers"
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return path
	}
	return value
}

// startReceiver starts a receiver and returns the file with its output.
func startReceiver(t *testing.T, arguments ...string) (output string) {
	t.Helper()
	command := exec.Command(receivers(t), arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output = filepath.Join(t.TempDir(), "output")
	log, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(output)
			t.Logf("the receiver:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return output
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprint("127.0.0.1:", pgtest.FreePort(t))
}

// outputHas waits until a file has all texts.
func outputHas(t *testing.T, path string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		pgtest.Wait(t, "the receiver has printed "+text, func() bool {
			data, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(data), text)
		})
	}
}

// TestPyroscopeAPI: a server made from Pyroscope's published API reads the profiles.
func TestPyroscopeAPI(t *testing.T) {
	address := freeAddress(t)
	output := startReceiver(t, "pyroscope", address)
	needRoot(t)
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	canProfile(t, serve(t, s, true, "--export-pyroscope", "http://"+address, "--export-interval", "5s",
		"--export-cluster", "main", "--export-spool-dir", s.SocketDir))
	busy(t, s)
	outputHas(t, output, `service_name="main" cluster="main" backend_type="client backend" mode="cpu"`, "PostgresMain")
}

// TestCollector: an OpenTelemetry Collector reads the profiles.
func TestCollector(t *testing.T) {
	address := freeAddress(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [debug]}}
`, address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output := startReceiver(t, "otel", "--config", "file:"+config, "--feature-gates", "+service.profilesSupport")
	needRoot(t)
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	w := serve(t, s, true, "--export-otlp", "http://"+address, "--export-interval", "5s", "--export-cluster", "main",
		"--export-spool-dir", s.SocketDir)
	canProfile(t, w)
	busy(t, s)
	outputHas(t, output, "service.name: Str(main)", "backend_type: Str(client backend)", "PostgresMain")
	pgtest.Wait(t, "accepted", func() bool { n, _ := w.metric(`export_profiles_total{receiver="otlp"}`); return n > 0 })
	if n, _ := w.metric(`export_dropped_total{receiver="otlp"}`); n > 0 {
		t.Errorf("%v profiles were dropped", n)
	}
}
